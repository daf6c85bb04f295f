// codegen/cuda/backward_sm90/loads.cuh — loads for a step of Hopper's backward: operands, and lse and delta of its
// rows; by the producer warp or, where that has too few registers, by a warp of its own
#pragma once

#include "codegen/cuda/backward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/parts/copied_read_sm90.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

// ---- rows --------------------------------------------------------------------------------------------------------

/// A lane has the rows lane, lane + 32, ... of a tile of queries.
template <class Tile>
constexpr int rows_each_lane = (Tile::m + 31) / 32;

/// Reads a lane's rows of a tile of a sequence that begins at q_start, all at once, and calls then(nth, row end) for
/// each.
template <class Tile, class User, class Then>
__device__ inline void read_rows(const BackwardArgs& args, const User& user, Where at, int q_start, int tile, int lane,
                                 const Then& then) {
  constexpr int m = Tile::m, rows = rows_each_lane<Tile>;
  const int first = tile * m + lane;
  const auto has = [&](int i) { return first + 32 * i < at.q_len && (m % 32 == 0 || 32 * i + lane < m); };
  float lse[rows], delta[rows];
  const auto read = [&](float(&to)[rows], const Rows& all) {
    const float* from = all.data + at.b * all.batch + at.h * all.head + (q_start + first) * all.position;
#pragma unroll
    for (int i = 0; i < rows; ++i, from += 32 * all.position) to[i] = has(i) ? __ldg(from) : 0.0f;
  };
  read(lse, args.lse);
  read(delta, args.delta);
  const auto head = user.head(at);
  const Int origin = args.q_offset + tile * m;
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const Int q = args.q_offset + first + 32 * i;
    then(i, has(i) ? row_end(user, lse[i], user.rest(head, user.row(head, at, q), at, origin, q), delta[i]) : no_row());
  }
}

template <class Tile>
__device__ inline void put_row(unsigned shared, int stage, int lane, int nth, const RowEnd& end) {
  using Shared = Shared90Backward<Tile>;
  if (Tile::m % 32 != 0 && 32 * nth + lane >= Tile::m) return;
  const unsigned to = shared + 4 * (stage * Tile::m + 32 * nth + lane);
  shared_put(to + Shared::under, __float_as_int(end.under));
  shared_put(to + Shared::delta, __float_as_int(end.delta));
}

// ---- operands ----------------------------------------------------------------------------------------------------

/// Where a step's operands lie: rows counted in their tensors.
struct StepAt {
  int b, h, q, kv, kv_head;
};
/// Rows of a head, from `first` on, in a tensor.
struct Boxes {
  const TensorMap& map;
  int first, head, batch;
};
template <class Tile>
__device__ inline void load_boxes(unsigned into, unsigned barrier, int chunks, int lines, const Boxes& from) {
  for (int c = 0; c < chunks; ++c)
    load_box(into + c * lines * chunk_bytes, from.map, barrier, c * Shared90Backward<Tile>::chunk, from.first,
             from.head, from.batch);
}

/// Called by one thread: queries and grad_o.
template <class Tile>
__device__ inline void load_queries(const BackwardArgs& args, unsigned shared, int what, int stage, const StepAt& at) {
  using Shared = Shared90Backward<Tile>;
  const unsigned full = shared + Shared::full + StageBarriers::bytes * stage;
  if (what & (Step::empty | Step::stop)) {
    barrier_arrive(full);
    return;
  }
  const int q_batch = is_packed<Tile> ? 0 : at.b;
  barrier_expect(full, Shared::q_bytes + Shared::grad_o_bytes);
  load_boxes<Tile>(shared + Shared::q + stage * Shared::q_bytes, full, Shared::d_chunks, Tile::m,
                   {args.q_map, at.q, at.h, q_batch});
  load_boxes<Tile>(shared + Shared::grad_o + stage * Shared::grad_o_bytes, full, Shared::dv_chunks, Tile::m,
                   {args.grad_o_map, at.q, at.h, q_batch});
}

/// Called by one thread, in an item's first step: keys and values. Items without a step take a phase of keys_empty too.
template <class Tile>
__device__ inline void load_keys(const BackwardArgs& args, unsigned shared, int what, unsigned keys_phase,
                                 const StepAt& at) {
  using Shared = Shared90Backward<Tile>;
  barrier_wait(shared + Shared::keys_empty, keys_phase ^ 1);
  if (what & Step::empty) return;
  const int kv_batch = is_packed<Tile> || args.kv_shared ? 0 : at.b;
  const unsigned k_full = shared + Shared::k_full, v_full = shared + Shared::v_full;
  barrier_expect(k_full, Shared::k_bytes);
  load_boxes<Tile>(shared + Shared::k, k_full, Shared::d_chunks, Tile::n, {args.k_map, at.kv, at.kv_head, kv_batch});
  barrier_expect(v_full, Shared::v_bytes);
  load_boxes<Tile>(shared + Shared::v, v_full, Shared::dv_chunks, Tile::n, {args.v_map, at.kv, at.kv_head, kv_batch});
}

// ---- a warp of its own -------------------------------------------------------------------------------------------

/// Takes the words of each step, which the producer warp writes once the step's stage is free.
template <class Tile, class User>
__device__ inline void load_steps(const BackwardArgs& args, const User& user, unsigned shared, int lane) {
  using Shared = Shared90Backward<Tile>;
  static_assert(Tile::stages == 2);
  // The number of steps, and in the last bit the phase of keys, together because registers are short.
  constexpr unsigned keys_bit = 1u << 31;
#pragma unroll 1
  for (unsigned step = 0;; ++step) {
    barrier_wait(shared + Shared::known + 8 * (step % steps_kept), step / steps_kept & 1);
    const auto word = [&](int i) { return shared_get(step_word<Tile>(shared, step, i)); };
    const int stage = static_cast<int>(step & 1), what = uniform(word(0));
    const bool begins = what & (Step::first | Step::empty);
    const auto places = [&] {
      return StepAt{word(2), word(3), word(8) + word(1) * Tile::m, word(10) + word(4) * Tile::n, word(5)};
    };
    constexpr bool rows_first = !copies_for_backward<Tile, User> && rows_each_lane<Tile> < 4;
    const auto load_keys_now = [&] {
      if (begins && elected()) load_keys<Tile>(args, shared, what, step >> 31, places());
      __syncwarp();
    };
    if (elected()) load_queries<Tile>(args, shared, what, stage, places());
    __syncwarp();
    if constexpr (!rows_first) load_keys_now();
    if constexpr (copies_for_backward<Tile, User>) {
      if (begins) barrier_wait(shared + Shared::results_empty, (step >> 31) ^ 1);
      if (Shared::wide && !(what & Step::stop)) barrier_wait(shared + Shared::copied_empty, (step & 1) ^ 1);
      if (!(what & (Step::empty | Step::stop))) {
        const Where at{word(2), word(3), word(9), word(11)};
        const int first = word(1) * Tile::m;
        const int ds = Shared::ds + stage * Shared::ds_bytes;
        CopiedTile90<User, Tile::m, Tile::n, true> copied{user, shared + ds, lane};
        if constexpr (Shared::wide) copied.odd = Shared::copied - ds;
        copied.start(0, user.head(at), at, args.q_offset + first, at.q_len - first, word(4) * Tile::n);
        copy_commit();
      }
    }
    if (!(what & (Step::empty | Step::stop)))
      read_rows<Tile>(args, user, Where{word(2), word(3), word(9), word(11)}, word(8), word(1), lane,
                      [&](int nth, const RowEnd& end) { put_row<Tile>(shared, stage, lane, nth, end); });
    // After the rows, which can be read while the previous item still uses its keys.
    if constexpr (rows_first) load_keys_now();
    if (begins) step ^= keys_bit;
    if constexpr (copies_for_backward<Tile, User>) copy_wait<0>();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + Shared::full + StageBarriers::bytes * stage);
    if (what & Step::stop) return;
  }
}

}  // namespace attune
