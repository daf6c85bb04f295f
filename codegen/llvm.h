// codegen/llvm.h — the CPU's kernels as object code; needs no LLVM header
#pragma once

#include <string>

#include "codegen/cpu.h"
#include "codegen/parts.h"

namespace attune::codegen {

/// A module as LLVM's text, for who wants to read it.
struct Listing {
  std::string before, after;  ///< LLVM's passes
};

/// The kit for tensors of this type (f32, f16 or bf16): see kit_symbol. Unit::bf16 only for bf16 where has_bf16(isa).
std::string kit_object(Isa isa, Unit unit, DType type, Listing* listing = nullptr);

/// What the forward needs of a user's expressions: see mod_symbol.
std::string forward_object(const compiler::Mod& mod, Isa isa, Unit unit, Listing* listing = nullptr);

/// What the backward needs of a user's expressions: see mod_symbol.
std::string backward_object(const compiler::Mod& mod, const Wanted& wanted, Isa isa, Unit unit,
                            Listing* listing = nullptr);

/// A loop of independent multiply-adds: `peak`, of type PeakFn. Benchmarks give percents of it.
struct Peak {
  std::string object;
  double flop;  ///< in one round
};
/// The memory is 64 floats to start from, and is written to.
using PeakFn = void(std::int64_t rounds, float* memory);
Peak peak_object(Isa isa, Unit unit);

/// What object code is made of besides a Mod: the code that writes kernels, and the machine that it is for.
std::string writer_description(Isa isa);
/// Who makes it: LLVM, by its version.
std::string llvm_description();

}  // namespace attune::codegen
