// codegen/facts/ds_term.h — the gradient of a dense bias, such as bias[h, q, kv]: dS times a factor, summed over batch
// entries or heads
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/facts/parts.h"
#include "compiler/mod.h"

namespace attune::codegen {

/// What an index of the tensor is; `none`: the literal 0. Batch entries and heads in groups of `by`: b / by, h / by.
struct Along {
  enum Of : std::uint8_t { none, batch, head, query, key } of = none;
  std::int64_t by = 1;
};

/// The term of a captured tensor's gradient if no two pairs of a batch entry and head share an element of it.
struct DsTerm {
  std::uint32_t capture = 0;
  std::vector<Along> along;  ///< of each dimension of the tensor; query and key occur once, batch and head at most once
  /// What dS is multiplied by; depends on neither s nor p. Null: 1.
  ir::Expr factor;
};

/// The terms of this form whose tensors no other term adds to.
std::vector<DsTerm> ds_terms(const compiler::Mod& mod, const Wanted& wanted);

}  // namespace attune::codegen
