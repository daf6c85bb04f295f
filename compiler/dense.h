// compiler/dense.h — captured tensors that hold an element for each pair: a dense bias
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

/// True for a read whose last index is kv and whose others are the same for all pairs of a row: along a row it reads
/// one element after another.
bool is_dense(const ir::Expr& read);

/// The slot of the first f32, f16 or bf16 tensor that this expression reads so. None: no value.
std::optional<std::uint32_t> dense_slot(const ir::Expr& e, const Mod& mod);

}  // namespace attune::compiler
