// runtime/cache/told.h — what is told, and dumped, of a kernel that was made or found
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/cache/objects.h"
#include "runtime/watch/dump.h"
#include "runtime/watch/watch.h"

namespace attune::runtime {

struct KernelName {
  const compiler::Mod* mod = nullptr;  ///< null: the same for all expressions
  std::string kernel, target;
};

struct KernelFacts {
  std::size_t bytes = 0;
  int registers = 0, spilled = 0, shared = 0;
  std::string flaw{};
};

/// Nothing of what was in memory. `asked`: what Objects was asked for.
void told_built(const KernelName& name, Origin origin, const Asked& asked, double seconds, const KernelFacts& facts);

/// Where ATTUNE_DUMP asks for it.
void dump_object(const KernelName& name, const std::string& key, const std::function<std::vector<DumpFile>()>& files);

}  // namespace attune::runtime
