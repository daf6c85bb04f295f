// runtime/engines/told.cpp — the facts and dumps of a kernel that was built or found
#include "runtime/engines/told.h"

#include "runtime/machine/cache/cache.h"

namespace attune::runtime {

void told_built(const KernelName& name, Origin origin, const Asked& asked, double seconds, const KernelFacts& facts) {
  if (origin == Origin::memory || !wants(Fact::built)) return;
  using From = watch::Built::From;
  const auto on_disk = origin == Origin::bundle ? std::nullopt : asked.on_disk();
  tell(watch::Built{.mod = name.mod ? name.mod->digest().hex() : "",
                    .kernel = name.kernel,
                    .target = name.target,
                    .from = origin == Origin::bundle ? From::bundle
                            : origin == Origin::disk ? From::disk
                                                     : From::compiler,
                    .seconds = seconds,
                    .bytes = facts.bytes,
                    .registers = facts.registers,
                    .spilled = facts.spilled,
                    .shared = facts.shared,
                    .flaw = facts.flaw,
                    .key = on_disk.value_or(cache_key(asked.content)).name()});
}

void dump_object(const KernelName& name, const std::string& key, const std::function<std::vector<DumpFile>()>& files) {
  if (dumps()) dump({.mod = name.mod, .target = name.target, .kernel = name.kernel, .all = key}, files);
}

}  // namespace attune::runtime
