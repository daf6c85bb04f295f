// runtime/engines/cpu/engine.h — the CPU engine: runs checked calls with compiled kernels on this machine's threads
#pragma once

#include "codegen/isa.h"
#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/engines/cpu/parallel.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {
class Purpose;
}  // namespace attune::runtime

namespace attune::runtime::cpu {

using codegen::Isa;

/// Seconds spent in the stages of a call, one after the other.
struct Stages {
  double visits = 0;  ///< finding which tiles to visit
  double pack = 0;    ///< packing keys and values for products
  double attend = 0;  ///< the rest
};

/// What a call uses besides its tensors.
struct Means {
  Isa isa;
  Executor executor{};
  Progress progress{};
  std::span<std::byte> workspace{};  ///< empty: the engine allocates for the length of the call
  Stages* stages = nullptr;
  Used* used = nullptr;
  const Purpose* purpose = nullptr;  ///< what the call's kernels are for
};

/// The instruction set to compile kernels for: ATTUNE_CPU's, else the widest this CPU has. Throws an Error if
/// ATTUNE_CPU asks for more than the CPU has.
Isa isa();

/// Bytes a call needs; they depend on its shapes, its types, the instruction set and the number of threads.
std::size_t forward_workspace(const compiler::LoweredMod& lowered, const Forward& call,
                              const compiler::Problem& problem, const Means& means);
void forward(const compiler::LoweredMod& lowered, const Forward& call, const compiler::Problem& problem,
             const Means& means);

std::size_t backward_workspace(const compiler::LoweredMod& lowered, const Backward& call,
                               const compiler::Problem& problem, const Means& means);
void backward(const compiler::LoweredMod& lowered, const Backward& call, const compiler::Problem& problem,
              const Means& means);

}  // namespace attune::runtime::cpu
