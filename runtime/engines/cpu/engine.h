// runtime/engines/cpu/engine.h — the CPU engine: runs checked calls with compiled kernels on this machine's threads;
// what its processor can do
#pragma once

#include <attune/tensor.h>

#include "codegen/isa.h"
#include "runtime/engines/engine.h"
#include "runtime/machine/parallel.h"

namespace attune::runtime::cpu {

/// The widest instruction set that the processor has and the operating system lets us use. Detected once per process.
codegen::Isa best_isa();
bool supports(codegen::Isa isa);

/// GFLOP/s of one thread, with the multiply-adds that products of this type use. Takes about two milliseconds.
double peak_gflops(DType type);

using codegen::Isa;

/// The instruction set to compile kernels for: ATTUNE_CPU's, else the widest this CPU has. Throws an Error if
/// ATTUNE_CPU asks for more than the CPU has.
Isa isa();

/// The number of threads, at least 1, that a call with this many multiplications makes good use of.
double worthwhile_workers(double products);
/// The threads of a call whose caller leaves their number to attune: ATTUNE_THREADS, or fewer, down to 1, where each
/// would get less work than waking it costs.
int usual_workers(const compiler::Problem& problem);

/// Bytes a call needs; they depend on its shapes, its types, the instruction set and the number of threads.
std::size_t forward_workspace(const Call& call, const Means& means);
std::size_t backward_workspace(const Call& call, const Means& means);
void forward(const Call& call, const Means& means);
void backward(const Call& call, const Means& means);

inline constexpr Engine engine{.workspace = by_direction<forward_workspace, backward_workspace>,
                               .run = by_direction<forward, backward>,
                               .story = nullptr};

}  // namespace attune::runtime::cpu
