// codegen/llvm.h — the CPU's kernels as object code; needs no LLVM header
#pragma once

#include <string>

#include "codegen/cpu.h"
#include "codegen/facts/parts.h"

namespace attune::codegen {

/// A module as LLVM's text, for dumps.
struct Listing {
  std::string before, after;  ///< before and after LLVM's passes
};

/// The kit for tensors of this type (f32, f16 or bf16): see kit_symbol. Unit::bf16 only for bf16 if has_bf16(isa).
std::string kit_object(Isa isa, Unit unit, DType type, Listing* listing = nullptr);

/// The forward's kernels for a user's expressions: see mod_symbol.
std::string forward_object(const compiler::Mod& mod, Isa isa, Unit unit, Listing* listing = nullptr);

/// The backward's kernels for a user's expressions: see mod_symbol.
std::string backward_object(const compiler::Mod& mod, const Wanted& wanted, Isa isa, Unit unit,
                            Listing* listing = nullptr);

/// A loop of independent multiply-adds: the symbol `peak`, of type PeakFn. Benchmarks report percentages of it.
struct Peak {
  std::string object;
  double flop;  ///< per round
};
/// `memory` holds 64 floats, which the loop reads and overwrites.
using PeakFn = void(std::int64_t rounds, float* memory);
Peak peak_object(Isa isa, Unit unit);

/// The inputs of object code other than a Mod: the sources that write kernels, and the target machine.
std::string writer_description(Isa isa);
/// The compiler: LLVM and its version.
std::string llvm_description();

}  // namespace attune::codegen
