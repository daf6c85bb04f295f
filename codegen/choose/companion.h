// codegen/choose/companion.h — the further kernels of a call: their sources, when they run, and how they are launched
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/facts/gpu_parts.h"
#include "codegen/source/source.h"
#include "compiler/problem.h"

namespace attune::codegen {

/// Facts of a call from which grids are computed.
struct LaunchCall {
  const compiler::Problem& problem;
  const KernelPlan& plan;
  int sms = 0;               ///< multiprocessors of the device
  std::int64_t blocks = 0;   ///< of the kernel that the companion belongs to
  bool shares_tiles = true;  ///< blocks share tiles of queries: neither does each tile stay whole, nor has it a cluster
  bool gives_dq = true;      ///< the gradient of q is asked for
};
using Grid = std::array<unsigned, 3>;

/// A kernel that a call launches in addition to its main kernel.
struct Companion {
  enum class When : std::uint8_t { before, after };
  When when = When::before;
  std::string_view role;  ///< in words
  std::string_view name;  ///< the kernel's
  /// Null: the device file of its name, with the mod or, if it is of_any_mod, as it is.
  Source (*source)(const GpuParts& parts, const KernelPlan& plan) = nullptr;
  /// True if calls of the plan need it. Null: all do.
  bool (*needed)(const GpuParts& parts, const KernelPlan& plan) = nullptr;
  /// Without blocks, the call does not launch it.
  Grid (*grid)(const LaunchCall& call) = [](const LaunchCall&) { return Grid{1, 1, 1}; };
  int threads = 0;
  bool early = false;       ///< starts while the previous launch drains, and waits for it itself
  bool of_any_mod = false;  ///< its source has none of the mod's expressions: mods of one tile share the kernel
  bool own_struct = false;  ///< the call makes a struct of args.cuh for it; else it gets the kernel's

  Source source_of(const GpuParts& parts, const KernelPlan& plan) const;
  /// True for lists of tiles.
  bool writes_lists() const { return name == "cover"; }
  bool is_needed(const GpuParts& parts, const KernelPlan& plan) const { return !needed || needed(parts, plan); }
};

/// The companions of the plan's kernel that its calls need, in the order of their launches.
std::vector<const Companion*> companions_of(const GpuParts& parts, const KernelPlan& plan);
/// "values transposed before"
std::string words_of(const Companion& companion);

/// Transposed values (FP8), or split keys and values (f32): the tiles of keys of a head, or if packed, places for the
/// tiles of all sequences, as place_of in the device's tile schedulers counts them; times the batch entries that
/// have their own values.
std::int64_t transposed_tiles(const compiler::Problem& p, const KernelPlan& plan);
std::int64_t transposed_batch(const compiler::Problem& p);

/// The rows of all heads and batch entries.
inline std::int64_t all_rows(const compiler::Problem& p) {
  return p.q_heads * (p.q.packed() ? p.q.total : p.batch * p.q.length);
}

// ---- the library's, for the descriptors of its kernels --------------------------------------------------------------

// Tile lists of a kernel, for masks that read data.
extern const Companion lists_along_kv, lists_along_q, table_of_visits;
extern const Companion gather_pages;    ///< copies keys and values out of pages of few rows
extern const Companion transpose_v;     ///< transposes FP8 values
extern const Companion split_keys;      ///< splits f32 keys and values, and transposes the values
extern const Companion split_rows;      ///< splits q, k, v and grad_o of f32, for a backward
extern const Companion clear_arrivals;  ///< clears the counters of blocks that share a tile, while the kernel starts
extern const Companion combine_mla;     ///< split-KV combine of MLA
extern const Companion combine_parts;   ///< split-KV combine of Hopper's forward
extern const Companion end_queries;     ///< converts the sums of dQ in memory
extern const Companion repair_whole, repair_part;  ///< recompute gradients that masked-out pairs made non-finite
extern const Companion spread_diagonals;           ///< adds sums along diagonals to captured gradients
extern const Companion sum_sinks;                  ///< adds up gradients that follow from rows' lse and delta
extern const Companion sum_pairs;                  ///< adds up terms of gradients by query and pair by pair
extern const Companion sum_deltas;                 ///< adds up delta of each row, of its pairs
extern const Companion sum_ds;                     ///< computes the gradient of a dense bias from stored dS

// Companions of a call, whichever kernels compute it. Their plan has only a spec: the forward's.
extern const Companion append_rows;    ///< writes new keys and values into a cache
extern const Companion delta_rows;     ///< delta of each row: the backward's preprocess
extern const Companion captured_sums;  ///< gradients of captured tensors, from exact sums
/// In the order of their launches.
std::span<const Companion* const> companions_of_calls();

}  // namespace attune::codegen
