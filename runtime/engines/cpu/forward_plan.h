// runtime/engines/cpu/forward_plan.h — the tiling, the packed operands and the workspace of a forward
#pragma once

#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/operands.h"
#include "runtime/engines/cpu/visits.h"

namespace attune::runtime::cpu {

/// The facts that follow from a call's expressions, shapes, types and strides. Reads no tensor.
struct ForwardPlan {
  ForwardPlan(const Call& of, const Means& means, const Among& some = {});
  ForwardPlan(const ForwardPlan&) = delete;  // its rounds point into its entries

  const Call& call;
  const compiler::Problem& problem;  ///< the call's
  Among among;
  KernelsFor kernels;
  Unit unit;
  Held<Kit> kit;
  Held<ForwardKernel> kernel;
  Cut cut;
  Widths qk, pv;
  TensorRows inputs, queries;  ///< rows of k and v, and of q, loaded as the Unit
  bool v_in_place;             ///< products read values from the caller's tensor
  std::vector<KVEntry> entries;
  std::vector<std::span<const KVEntry>> rounds;  ///< entries that are packed at the same time
  int workers;
  std::size_t workspace;  ///< bytes

  /// The maximum number of tiles of keys in a round.
  std::int64_t most_tiles() const;
  /// Units of a packed tile of keys, and of values.
  std::int64_t k_tile() const { return cut.tile_kv * qk.as_k; }
  std::int64_t v_tile() const { return v_in_place ? 0 : ceil_div(cut.tile_kv, codegen::per_unit(unit)) * pv.as_n; }
  /// Elements from one row of scratch to the next, of q or k.
  std::int64_t qk_row() const { return qk.as_k * codegen::per_unit(unit); }
};

/// One worker's memory.
struct ForwardScratch {
  ForwardScratch(Workspace& memory, const ForwardPlan& plan);

  std::uint32_t* q;  ///< units: [tile_q][qk.as_k]
  float* s;          ///< [tile_q][tile_kv]
  void* p;           ///< f32: the memory of s
  float* o;          ///< [tile_q][pv.as_n]
  float *m, *l, *alpha, *ones;
  Fields fields;
  std::byte* rows;  ///< a panel of keys, or their values, before it is packed
};

/// A call's memory. The plan makes one to count the bytes, the run another to use them.
struct ForwardMemory {
  ForwardMemory(Workspace& memory, const ForwardPlan& plan);

  std::uint32_t *k, *v;  ///< by tile of a round
  bool* bad;             ///< by tile of a round: true if one of its values is infinite or NaN
  std::vector<ForwardScratch> scratch;
};

/// Decode: few queries against many keys, which are read once, in place. The limit on the queries of one head: with
/// more queries, packing keys and values for products in registers saves more time than it costs.
constexpr std::int64_t most_decoded = 8;

/// True if keys and values can be read in place.
bool can_decode(const Call& call);

/// These functions compute only the entries with at most `most_decoded` queries.
std::size_t decode_workspace(const Call& call, const Means& means);
void decode(const Call& call, const Means& means);

}  // namespace attune::runtime::cpu
