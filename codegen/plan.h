// codegen/plan.h — what a GPU kernel is chosen by (KernelSpec), and the choice: kernel, tile, what a launch needs
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cuda/contract/traits.cuh"
#include "codegen/variant.h"
#include <attune/tensor.h>

namespace attune::codegen {

struct KernelDescriptor;

/// Facts of a call by which kernels are chosen, besides its expressions.
struct KernelSpec {
  int arch = 90;                                 ///< compute capability times ten
  DType dtype = DType::bf16, out = DType::bf16;  ///< of q, k and v; of o
  std::int64_t d = 128, dv = 128;
  bool max = false;          ///< the call asks for the rows' maxima
  bool packed = false;       ///< sequences of different lengths
  bool per_entry = false;    ///< entries have lengths or positions of their own, or pages: no lists of tiles are made
  bool paged = false;        ///< the KV cache is paged
  bool fp8_kv = false;       ///< the KV cache is FP8 (E4M3), and q is not
  bool before = false;       ///< results of a call over other keys are merged in
  bool fixed_split = false;  ///< the call has a fixed split size
  bool mla = false;          ///< heads are wider than most, and values are the first columns of the keys
  int page_rows = 0;         ///< MLA, paged: the largest power of 2 that divides a page's rows, at most 64
  bool two_row_blocks = false;  ///< MLA: more than 64 rows share keys
  int heads = 1;        ///< query heads of a key head that would share a tile: 1, 2, 4, 8, 16 of one query; MLA: to 64
  bool decode = false;  ///< these heads' queries are 16 rows at most
  bool tma = true;      ///< TMA can copy q, k, v and o: their layouts allow it, and none is empty
  /// Bytes by which every row of q, k and v (load) and of o (store) may be copied: 16, 8, 4, or 0 for an element.
  int load = 16, store = 16;
  bool scale_positive = true;
  bool exact = false;      ///< as Attention::exact
  bool offsets64 = false;  ///< offsets into captured tensors need more than 32 bits
  bool operator==(const KernelSpec&) const = default;
  auto operator<=>(const KernelSpec&) const = default;
};

/// The instruction that computes a kernel's products: mma.sync of a warp, or wgmma of a warpgroup, which Hopper alone
/// has.
enum class Products : std::uint8_t { mma, wgmma };

/// Which struct of codegen/cuda/contract/args.cuh a kernel gets: ForwardArgs, PerEntryArgs, DecodeArgs, MlaArgs or
/// BackwardArgs.
enum class ArgsKind : std::uint8_t { forward, per_entry, decode, mla, backward };

/// A kernel's tile: the members that launches depend on, and those that only its source has.
struct Tile {
  int m = 128, n = 128, d = 128, dv = 128, stages = 2;
  int heads = 1;                                   ///< query heads of a key head that share a tile: 1, 2, 4 … 64
  int warps = 0;                                   ///< of a block, which divide a tile's keys
  int cluster = 1;                                 ///< blocks that have other rows of the same keys, at the same time
  bool clusters = false;                           ///< two blocks that share a tile may be a cluster
  bool transposed = false;                         ///< values come transposed, by a kernel before
  std::vector<std::pair<std::string, int>> own{};  ///< further members of the source's Tile, which this kernel knows

  /// Queries of a tile.
  int queries() const { return m / heads; }
};

/// A kernel, the calls it is compiled for, and its tile.
struct KernelPlan {
  const KernelDescriptor* kernel = nullptr;
  KernelSpec spec{};
  Tile tile{};
  Variant variant{};  ///< what the tile was cut by: all members of the kernel

  /// True if it has the arguments that only some calls need.
  bool further() const { return spec.before || spec.fixed_split; }
  inline ArgsKind args() const;  // in codegen/kernel.h
};

/// Rows of the TMA box of each tensor.
struct BoxRows {
  int q = 0, k = 0, v = 0, o = 0;
};

/// A plan with what its launch needs.
struct KernelChoice {
  KernelPlan plan;
  int threads = 0;                 ///< of a block
  int shared_bytes = 0;            ///< dynamic, of a block
  bool counts_tiles = false;       ///< blocks take tiles of queries from a counter, which is 0 before the launch
  std::optional<BoxRows> boxes{};  ///< tensors are described by maps of such boxes too
  int sums = 0;                    ///< f32 in memory that it adds the dq of a tile of queries up in
};

}  // namespace attune::codegen
