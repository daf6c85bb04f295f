// runtime/cpu/engine.h — the CPU engine: calls that were checked, computed by compiled kernels on this machine's
// threads
#pragma once

#include "codegen/isa.h"
#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/cpu/parallel.h"
#include "runtime/watch/watch.h"

namespace attune::runtime::cpu {

using codegen::Isa;

/// Seconds that the stages of a call took, one after the other.
struct Stages {
  double visits = 0;  ///< finding which tiles to visit
  double pack = 0;    ///< keys and values as products take them
  double attend = 0;  ///< the rest
};

/// What a call works with besides its tensors.
struct Means {
  Isa isa;
  Executor executor{};
  Progress progress{};
  std::span<std::byte> workspace{};  ///< empty: memory of the engine's own for the length of the call
  Stages* stages = nullptr;
  Used* used = nullptr;
};

/// The instruction set that kernels are compiled for: ATTUNE_CPU's, else the widest this CPU has. An Error where
/// ATTUNE_CPU asks for more than it has.
Isa isa();

/// Bytes a call needs: by its shapes, its types, the instruction set and how many threads work.
std::size_t forward_workspace(const compiler::LoweredMod& lowered, const Forward& call,
                              const compiler::Problem& problem, const Means& means);
void forward(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
             const Means& means);

std::size_t backward_workspace(const compiler::LoweredMod& lowered, const Backward& call,
                               const compiler::Problem& problem, const Means& means);
void backward(const compiler::LoweredMod& lowered, const Backward& call, const compiler::Problem& problem,
              const Means& means);

}  // namespace attune::runtime::cpu
