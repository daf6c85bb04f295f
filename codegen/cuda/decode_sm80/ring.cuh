// codegen/cuda/decode_sm80/ring.cuh — the shared memory of a block of decode_sm80.cuh, and how each warp loads keys and
// values into its ring there
#pragma once

#include "codegen/cuda/decode_sm80/layout.cuh"
#include "codegen/cuda/parts/lines.cuh"
#include "codegen/cuda/parts/row.cuh"
#include "codegen/cuda/parts/split_kv_sm80.cuh"

namespace attune {

// ---- shared memory -----------------------------------------------------------------------------------------------

/// The type of keys and values.
template <class Tile>
using Kept = Either<Tile::fp8_kv != 0, e4m3, typename Tile::Element>;

/// Offsets into shared memory, from layout/.
template <class Tile>
struct SharedDecode {
  static constexpr int size = ElementOf<typename Tile::Element>::bytes, kept = ElementOf<Kept<Tile>>::bytes;
  static constexpr DecodeLayout80 at{.m = Tile::m,
                                     .n = Tile::n,
                                     .d = Tile::d,
                                     .dv = Tile::dv,
                                     .stages = Tile::stages,
                                     .warps = Tile::warps,
                                     .element = size,
                                     .kept = kept,
                                     .has_before = has_before<Tile>};
  static_assert(at.part == sizeof(RowPartial));
};

// ---- the ring ----------------------------------------------------------------------------------------------------

/// Loads the keys and values of a warp's iterations into its ring, ahead of their use.
template <class Tile, class User>
struct Ahead {
  using Shared = SharedDecode<Tile>;
  using KLine = Lines<Tile::d * Shared::kept>;
  using VLine = Lines<Tile::dv * Shared::kept>;

  const DecodeArgs& args;
  const User& user;
  const SplitRange& split;
  const int lane, warp;
  const unsigned ring;
  int tile, step, end, slot = 0;
  int length;
  Walk walk;
  Rows80 k, v;
  int entry = 0;                   ///< whose pages are looked up
  int page = -1, row_of_page = 0;  ///< of the row that this lane looks up: row `lane` of the step

  __device__ Ahead(const DecodeArgs& args, const User& user, const SplitRange& split, unsigned shared, int from)
      : args(args), user(user), split(split), lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        ring(shared + Shared::at.ring + static_cast<unsigned>(warp * Shared::at.ring_bytes)), tile(from - 1), step(0),
        end(0) {
    next();
  }

  /// Finds the warp's first step in the next tile that has one for this warp.
  __device__ void next() {
    while (step >= end) {
      ++tile;
      if (tile > split.end.tile || (tile == split.end.tile && split.end.step == 0)) {
        end = -1;
        return;
      }
      const auto of = DecodeTile::of<Tile>(args, tile);
      walk = of.template walk<Tile>(args, user);
      step = (tile == split.begin.tile ? split.begin.step : 0) + warp;
      end = tile == split.end.tile ? split.end.step : walk.count;
      length = of.keys.length;
      const int kv_b = args.kv_shared || Tile::paged ? 0 : of.b;
      k = rows_of<Kept<Tile>>(args.k, kv_b, of.kv_head, of.keys.start);
      v = rows_of<Kept<Tile>>(args.v, kv_b, of.kv_head, of.keys.start);
      entry = of.b;
    }
    if constexpr (Tile::paged) look_up();
  }
  /// Loads the next rows into the slot that was used longest ago: keys and values alternately, keys first.
  template <bool Values>
  __device__ void load() {
    if (end >= 0) {
      const unsigned into = ring + static_cast<unsigned>(slot * Shared::at.slot_bytes);
      const int first = walk.tile(step) * Tile::n;
      if constexpr (Values) {
        rows<VLine, Tile::dv * Shared::kept, Tile::width_v * Shared::kept>(into, v, args.v.batch, first);
        step += Tile::warps;
        next();
      } else {
        rows<KLine, Tile::d * Shared::kept, Tile::width * Shared::kept>(into, k, args.k.batch, first);
      }
    }
    copy_commit();
    slot = slot + 1 == Tile::stages ? 0 : slot + 1;
  }
  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < Tile::stages / 2; ++i) {
      load<false>();
      load<true>();
    }
    if constexpr (Tile::stages % 2) load<false>();
  }

 private:
  /// Each lane looks up the page of one row of the step, well before the page is needed.
  __device__ void look_up() {
    const int row = walk.tile(step) * Tile::n + lane;
    page = -1;
    if (lane >= Tile::n || row >= length) return;
    const Pages pages(args.page_table, entry);
    const Pages::At at = pages.at(row);
    row_of_page = at.row;
    if (at.page < pages.count) page = at.page;
  }
  /// Copies n rows of Width bytes into lines of Pitch bytes; missing rows and bytes are 0.
  template <class Line, int Pitch, int Width>
  __device__ void rows(unsigned into, const Rows80& rows, long long page_stride, int first) const {
    constexpr int piece = 16, pieces = Pitch / piece, across = (pieces & -pieces) < 32 ? pieces & -pieces : 32,
                  down = 32 / across;
    const int row0 = lane / across, byte0 = lane % across * piece;
    const long long mine = page * page_stride * Shared::kept + row_of_page * rows.position;
    const unsigned there = Tile::paged ? __ballot_sync(~0u, page >= 0) : 0;
    const auto is_there = [&](int row) { return Tile::paged ? (there >> row & 1) != 0 : first + row < length; };
    const char* from = rows.data + (first + row0) * rows.position + byte0;
#pragma unroll
    for (int r = 0; r < Tile::n; r += down, from += down * rows.position) {
      if constexpr (Tile::paged) from = rows.data + __shfl_sync(~0u, mine, row0 + r) + byte0;
      const bool has_row = is_there(row0 + r);
#pragma unroll
      for (int c = 0; c < Pitch; c += across * piece) {
        const int count = !has_row ? 0 : Width == Pitch ? piece : min(max(Width - byte0 - c, 0), piece);
        copy_async<piece>(into + Line::at(row0 + r, byte0 + c), count ? from + c : rows.data, count);
      }
    }
  }
};

}  // namespace attune
