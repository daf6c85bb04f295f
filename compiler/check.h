// compiler/check.h — refuse with an Error: what a Mod may be once, what a call may be once per shape
#pragma once

#include <attune/attention.h>
#include "compiler/trace.h"

namespace attune::compiler {

/// Of the expressions alone: inputs where they mean something, a sink without q and kv, captures float that ask for
/// gradients.
void check(const Mod& mod);

/// The sizes of one call, worked out once from its tensors. Lengths of packed sequences are those of cu_seqlens.
struct Problem {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, group = 1, q_len = 0, kv_len = 0, d = 0, dv = 0;
  bool packed = false;
  bool kv_shared = false;                    ///< k and v have one batch entry for all
  std::vector<std::int64_t> q_starts, kv_starts;  ///< packed: batch + 1 of each
  double scale = 1;
  std::int32_t q_offset = 0;
};

/// Shapes, dtypes, devices, lengths, captures and gradients of a call; every refusal is an Error.
Problem check(const Traced& traced, const Forward& call, std::optional<double> scale);
Problem check(const Traced& traced, const Backward& call, std::optional<double> scale);

/// Capture indices against extents: an Error when an index is outside for every coordinate.
/// Gives the reads that could not be proven inside (an engine clamps those).
std::vector<ir::Expr> check_reads(const Mod& mod, std::span<const Tensor> captures, const Problem& problem);

}  // namespace attune::compiler
