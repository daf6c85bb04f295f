// codegen/llvm.h — the CPU's kernels as object code; needs no LLVM header
#pragma once

#include <string>

#include "codegen/cpu.h"
#include "compiler/mod.h"

namespace attune::codegen {

/// The kit for tensors of this type (f32, f16 or bf16): see kit_symbol. Unit::bf16 only for bf16 where has_bf16(isa).
std::string kit_object(Isa isa, Unit unit, DType type);

/// What the forward needs of a user's expressions: see mod_symbol.
std::string forward_object(const compiler::Mod& mod, Isa isa, Unit unit);

/// LLVM's version, the target's features and the code that writes kernels: what object code depends on besides.
std::string codegen_description(Isa isa);

}  // namespace attune::codegen
