// codegen/choose/plan.h — what a GPU kernel is chosen by (KernelSpec), and the choice: kernel, tile, what a launch
// needs
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/choose/kind.h"
#include "codegen/cuda/contract/args.cuh"
#include <attune/tensor.h>

namespace attune::codegen {

struct KernelDescriptor;

/// Where a call's keys and values are, as in a KV cache.
struct KvCache {
  bool per_entry = false;  ///< entries have their own lengths, positions or pages
  /// The largest power of 2 that divides a page's rows, at most 64; 0: there are no pages. 64 where no kernel loads
  /// boxes of pages, see loads_boxes().
  int page_rows = 0;
  bool fp8 = false;  ///< k and v are FP8 (E4M3), and q is not
  bool mla = false;  ///< MLA: wide heads whose values are the first columns of the keys

  constexpr bool paged() const { return page_rows > 0; }
  auto operator<=>(const KvCache&) const = default;
};

/// How many queries read the same keys.
enum class QueryRows : std::uint8_t {
  decode,  ///< those of the heads that share a tile are at most 16 rows, and preparing keys in memory does not pay
  few,     ///< preparing keys in memory does not pay, see are_few()
  many,
};

/// How queries share keys. A call's sizes decide, and most of it matters to few kernels: settle() fills it in.
struct Sharing {
  QueryRows rows = QueryRows::many;
  int heads = 1;       ///< query heads of a key head that would share a tile: 1, 2, 4, 8, 16 of one query; MLA: to 64
  int row_blocks = 1;  ///< MLA: blocks of a cluster, each with 64 of the rows that share keys: 1, 2 or 4
  bool few_tiles = false;    ///< Hopper, 16 bits: blocks share the keys of tiles of queries, see parts_of_keys()
  bool shared_keys = false;  ///< query heads share key heads; Hopper's backwards alone

  constexpr bool decode() const { return rows == QueryRows::decode; }
  auto operator<=>(const Sharing&) const = default;
};

/// What kernels may assume of where a call's tensors lie.
struct Strides {
  bool tma = true;  ///< TMA can copy q, k, v and o: their layouts allow it, and none is empty
  /// Bytes by which every row of q, k and v (load) and of o (store) may be copied: 16, 8, 4; 0: an element at a time.
  int load = 16, store = 16;
  bool offsets64 = false;           ///< offsets into captured tensors need more than 32 bits
  bool unaligned_captures = false;  ///< has_unaligned_rows() of the first of LoweredMod::dense; backwards alone
  bool unaligned_second = false;    ///< ... of the second
  auto operator<=>(const Strides&) const = default;
};

/// Facts of a call by which kernels are chosen, in addition to its expressions and lengths.
struct KernelSpec {
  int arch = 90;                                 ///< compute capability times ten
  DType dtype = DType::bf16, out = DType::bf16;  ///< of q, k and v; of o
  std::int64_t d = 128, dv = 128;
  bool max = false;     ///< the call asks for the rows' maxima
  bool packed = false;  ///< sequences of different lengths
  KvCache cache{};
  bool before = false;       ///< results of a call over other keys are merged in
  bool fixed_split = false;  ///< the call has a fixed split size
  Sharing sharing{};
  Strides strides{};
  bool negative = false;  ///< the scale of q . k is not positive
  bool exact = false;     ///< as Attention::exact
  auto operator<=>(const KernelSpec&) const = default;
};

/// The instruction that computes a kernel's products: mma.sync of a warp, or wgmma of a warpgroup, which only Hopper
/// has.
enum class Products : std::uint8_t { mma, wgmma };

/// The struct of codegen/cuda/contract/args.cuh that a kernel gets: ForwardArgs, DecodeArgs, MlaArgs or BackwardArgs.
enum class ArgsKind : std::uint8_t { forward, decode, mla, backward };

/// A kernel's tile: the members that launches depend on, and the members that only the source has.
struct Tile {
  int m = 128, n = 128, d = 128, dv = 128, stages = 2;
  int heads = 1;            ///< query heads of a key head that share a tile: 1, 2, 4 … 64
  int warps = 0;            ///< warps of a block, which divide a tile's keys
  int cluster = 1;          ///< blocks that have different rows of the same keys at the same time
  bool clusters = false;    ///< two blocks that share a tile may be a cluster
  bool transposed = false;  ///< values are transposed by a previous kernel
  bool alone = false;       ///< a tile of keys holds all keys of a sequence
  bool completes = false;   ///< the item of keys that queries visit last completes their dq
  bool returns = false;     ///< an item visits most heads of its group on the way back to the diagonal
  bool gathered = false;    ///< a previous kernel copies keys and values out of their pages
  bool in_parts = false;    ///< blocks share the keys of a tile of queries, and a later kernel adds up what they leave
  int parts = 0;            ///< f32 operands are split into as many numbers of TF32 or f16 by a previous kernel
  std::vector<std::pair<std::string, int>> own{};  ///< further members of the source's Tile, specific to this kernel

  /// Queries of a tile.
  int queries() const { return m / heads; }
};

/// A kernel, the calls it is compiled for, and its tile.
struct KernelPlan {
  const KernelDescriptor* kernel = nullptr;
  KernelSpec spec{};
  Tile tile{};
  Variant variant{};  ///< all members of the kernel's tile

  /// True if the kernel has the arguments that only some calls need.
  bool further() const { return spec.before || spec.fixed_split || tile.in_parts; }
};

/// Rows of the TMA box of each tensor.
struct BoxRows {
  int q = 0, k = 0, v = 0, o = 0;
};

/// A plan with what its launch needs.
struct KernelChoice {
  KernelPlan plan;
  int threads = 0;                 ///< threads of a block
  int shared_bytes = 0;            ///< dynamic shared memory of a block
  int blocks_of_sm = 1;            ///< blocks of a persistent kernel that share an SM
  bool counts_tiles = false;       ///< blocks take tiles of queries from a counter, which is 0 before the launch
  std::optional<BoxRows> boxes{};  ///< tensors also have tensor maps with such boxes
  int sums = 0;                    ///< f32 in memory per tile of queries, in which dq is added up
};

}  // namespace attune::codegen
