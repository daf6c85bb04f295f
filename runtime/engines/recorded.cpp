// runtime/engines/recorded.cpp — the facts and dumps of a kernel that was built or found
#include "runtime/engines/recorded.h"

#include <bit>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "runtime/machine/cache/cache.h"
#include "runtime/machine/mutex.h"

namespace attune::runtime {
namespace {

constexpr std::size_t many = 64;  // kernels of a process that differ only in literals; each doubling is recorded again

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_in_name(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// The expressions of a mod, with # for each number.
std::string without_numbers(const compiler::Mod& mod) {
  std::string out;
  for (const auto& [name, text] : mod.facts()) {
    out += name + ' ';
    for (std::size_t i = 0; i < text.size();) {
      if (!is_digit(text[i]) || (i > 0 && is_in_name(text[i - 1]))) {
        out += text[i++];
        continue;
      }
      out += '#';
      while (i < text.size() && (is_in_name(text[i]) || text[i] == '.' || (text[i] == '-' && text[i - 1] == 'e'))) ++i;
    }
    out += '\n';
  }
  return out;
}

/// Warns about a score with a new constant at each step of a loop, which compiles a new kernel at each step.
void record_alike(const KernelName& name) {
  static Mutex mutex;
  std::unique_lock lock(mutex);
  static std::map<std::string, std::size_t> kernels;
  constexpr std::size_t most_kinds = 1024;
  if (kernels.size() >= most_kinds) kernels.clear();
  const std::size_t count = ++kernels[fmt::format("{} {}\n{}", name.kernel, name.target, without_numbers(*name.mod))];
  lock.unlock();
  if (count >= many && std::has_single_bit(count))
    note(watch::Notice::Of::cache,
         fmt::format(
             "{} kernels {} of {} differ only in numbers, and each was compiled or read: make a number that changes "
             "a Param, and one kernel is enough",
             count, name.kernel, name.target));
}

}  // namespace

void record_built(const KernelName& name, Origin origin, const Asked& asked, double seconds, const KernelFacts& facts) {
  if (name.mod && origin != Origin::memory && wants(Fact::notice)) record_alike(name);
  if (origin == Origin::memory || !wants(Fact::built)) return;
  using From = watch::Built::From;
  const auto on_disk = origin == Origin::bundle ? std::nullopt : asked.on_disk();
  record(watch::Built{.mod = name.mod ? name.mod->digest().hex() : "",
                      .kernel = name.kernel,
                      .target = name.target,
                      .from = origin == Origin::bundle ? From::bundle
                              : origin == Origin::disk ? From::disk
                                                       : From::compiler,
                      .seconds = seconds,
                      .phases = facts.phases,
                      .bytes = facts.bytes,
                      .registers = facts.registers,
                      .spilled = facts.spilled,
                      .shared = facts.shared,
                      .flaw = facts.flaw,
                      .key = on_disk.value_or(cache_key(asked.content)).name(),
                      .tier = facts.tier});
}

void dump_object(const KernelName& name, const std::string& key, const std::function<std::vector<DumpFile>()>& files) {
  if (dumps()) dump({.mod = name.mod, .target = name.target, .kernel = name.kernel, .all = key}, files);
}

}  // namespace attune::runtime
