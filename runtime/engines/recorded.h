// runtime/engines/recorded.h — the facts and dumps of a kernel that was built or found
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/engines/dump.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {

struct KernelName {
  const compiler::Mod* mod = nullptr;  ///< null: a kernel without user expressions
  std::string kernel, target;
};

struct KernelFacts {
  std::size_t bytes = 0;
  int registers = 0, spilled = 0, shared = 0;
  std::string flaw{};
  std::vector<watch::Built::Phase> phases{};
  std::string tier{};
};

/// Records Fact::built, unless the object was already in memory. `asked`: the request to Objects.
void record_built(const KernelName& name, Origin origin, const Asked& asked, double seconds, const KernelFacts& facts);

/// Writes a dump if ATTUNE_DUMP asks for one.
void dump_object(const KernelName& name, const std::string& key, const std::function<std::vector<DumpFile>()>& files);

}  // namespace attune::runtime
