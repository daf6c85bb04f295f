// codegen/cuda/forward_sm90/forward_f32_sm90.cuh — the forward on Hopper where q, k and v are f32: one product of TF32,
// or three that are as exact as f32
//
// The kernel of forward_sm90.cuh, with these differences. Products of TF32 need both operands K-major, and ignore the
// last 13 bits of an f32. So split_keys_sm90.cuh has rounded the keys and values of the call in memory, tile by tile,
// with the keys of a tile of values along rows. It permutes each eight keys into the order in which a thread holds
// their scores, so that probabilities are an operand without a shuffle. With two parts, each number is the sum of its
// rounding and of the rounded rest: three products of these give 21 bits of each fraction. Queries are rounded here:
// with one part in shared memory, with two in registers, 16 at a time.
#pragma once

#include "codegen/cuda/forward_sm90/consumer.cuh"
#include "codegen/cuda/forward_sm90/forward_sm90.cuh"
#include "codegen/cuda/parts/multiply_sm80.cuh"

namespace attune {

/// A ForwardTile of f32, of which keys and values are one or two numbers of TF32. width_v: the number of real columns
/// among dv; store: bytes by which results may be stored.
template <class Tile>
concept ForwardF32Tile = ForwardTile<Tile> && sizeof(typename Tile::Element) == 4 &&
                         sizeof(typename Tile::Out) == 4 && come_transposed<Tile> &&
                         (Tile::parts == 1 || Tile::parts == 2) && (Tile::width_v <= Tile::dv && Tile::store >= 0);

/// The bits of an f32 that products ignore; and a finite number, or an infinity, whose other bits are rounded.
constexpr unsigned ignored = 0x1fff;
__device__ inline unsigned rounded(unsigned x) { return x + (ignored + 1) / 2; }

/// What one product and three have in common: results are stored from registers.
template <class Tile, class User>
struct WarpgroupF32 : Warpgroup90<Tile, User> {
  using Base = Warpgroup90<Tile, User>;
  using Base::args, Base::at, Base::group, Base::lane, Base::n, Base::o, Base::p, Base::entry, Base::s, Base::shared,
      Base::warp;
  using Base::head_of, Base::query;
  using typename Base::Shared;

  /// Word i of P as an operand: of each eight keys, key 2 c of both rows, then the next key of both.
  __device__ unsigned probability(int i) const {
    constexpr int order[4] = {0, 2, 1, 3};
    return __float_as_uint(s[i / 4 * 4 + order[i % 4]]);
  }
  __device__ void store(const Work& work, unsigned) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int nth = lane / 4 + 8 * r, q = work.tile * queries_of<Tile> + query(nth);
      if (q >= at.q_len || head_of(nth) >= work.heads.count) continue;
      const long long row = at.b * args.o.batch + at.h * args.o.head + (entry.queries.start + q) * args.o.position;
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i)
        put_results<Tile>(args.o, row, 8 * i + 2 * (lane & 3), {o[4 * i + 2 * r], o[4 * i + 2 * r + 1]});
    }
  }
};

/// One product.
template <class Tile, class User>
struct Warpgroup1Tf32 : WarpgroupF32<Tile, User> {
  using Base = WarpgroupF32<Tile, User>;
  using Base::group, Base::lane, Base::n, Base::o, Base::p, Base::s, Base::shared, Base::warp;
  using typename Base::Shared;

  /// Rounds the warp's rows where they lie.
  __device__ void prepare_queries(int stage) {
    const unsigned rows = shared.q()[stage].from(64 * group + 16 * warp);
#pragma unroll 4
    for (int i = 0; i < Shared::at.d_chunks * 4; ++i) {
      const unsigned at = rows + i / 4 * (Tile::m * chunk_bytes) + (i % 4 * 32 + lane) * 16;
      const uint4 x = shared_get_words(at);
      shared_put(at, tf32(x.x), tf32(x.y), tf32(x.z), tf32(x.w));
    }
    proxy_fence();
    named_sync(queries_read + group, warpgroup_threads);
  }
  __device__ void values(int stage, int add) {
    const unsigned long long b = descriptor(shared.v()[stage]);
    constexpr int chunk = Tile::dv * chunk_bytes >> 4;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < n / 8; i += 4)
      Product<Tile::dv, float>::template rs4<Major::k>(o, p + 4 * i, b + i / 4 * chunk, add | (i > 0));
    wgmma_commit();
  }
  __device__ void operand() {
#pragma unroll
    for (int i = 0; i < n / 2; ++i) p[i] = rounded(this->probability(i));
  }
};

/// Three products. The products with remainders are summed separately, because the remainder of an infinity is NaN;
/// and each tile has its own sums, because a product loses low bits when it adds to a large number.
template <class Tile, class User>
struct Warpgroup3Tf32 : WarpgroupF32<Tile, User> {
  using Base = WarpgroupF32<Tile, User>;
  using Base::group, Base::lane, Base::n, Base::o, Base::p, Base::s, Base::shared, Base::warp;
  using typename Base::Shared;
  static constexpr int columns = Tile::dv > 64 ? Tile::dv / 2 : Tile::dv;  ///< of results that are summed at a time
  static constexpr bool turns_of_both = false;

  __device__ void enter(const Item& item) {
    Base::enter(item);
    for (float& x : o) x = 0;
  }

  /// Four words of an operand without the bits that products ignore, and the remainders, rounded. Keys and values have
  /// rounded words instead, so that no remainder of a product has a preferred sign.
  struct Split {
    unsigned high[4], rest[4];
    __device__ explicit Split(const unsigned (&x)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        high[i] = x[i] & ~ignored;
        rest[i] = rounded(__float_as_uint(__uint_as_float(x[i]) - __uint_as_float(high[i])));
      }
    }
  };
  /// An address that the compiler computes here: with one stage it would keep all descriptors in registers, across
  /// tiles.
  __device__ static unsigned here(unsigned address) {
    return static_cast<unsigned>(uniform(static_cast<int>(address)));
  }
  /// sum += A B; low takes the products with remainders. `b`, `b_rest`: descriptors.
  template <int N>
  __device__ static void multiply3(float (&sum)[N], float (&low)[N], const unsigned* a, const unsigned* a_rest,
                                   unsigned long long b, unsigned long long b_rest) {
    using Of = Product<2 * N, float>;
    pin(sum);
    pin(low);
    wgmma_fence();
    Of::template rs<Major::k>(sum, a, b, 1);
    Of::template rs<Major::k>(low, a, b_rest, 1);
    Of::template rs<Major::k>(low, a_rest, b, 1);
    wgmma_commit();
  }

  /// S = Q K^T, complete when it returns.
  __device__ void scores(int q_stage, int stage) {
    const unsigned rows = shared.q()[q_stage].from(64 * group + 16 * warp + (lane & 15));
    const auto load = [&](unsigned(&x)[4], int step) {
      load_blocks(x, rows + step / 4 * (Tile::m * chunk_bytes) + ((2 * (step % 4) + (lane >> 4) ^ (lane & 7)) << 4));
    };
    const unsigned keys = here(shared.k()[stage]);
    const unsigned long long b = descriptor(keys), b_rest = descriptor(keys + Shared::at.k_bytes / 2);
    constexpr int steps = Tile::d / 8, chunk = n * chunk_bytes >> 4;
    float low[n / 2] = {};
    for (float& x : s) x = 0;
    unsigned x[2][4];
    load(x[0], 0);
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      if (i + 1 < steps) load(x[(i + 1) % 2], i + 1);
      if (i > 1) wgmma_wait<1>();
      const Split a(x[i % 2]);
      const int at = i / 4 * chunk + i % 4 * 2;
      multiply3(s, low, a.high, a.rest, b + at, b_rest + at);
    }
    wgmma_wait<0>(s, low);
#pragma unroll
    for (int i = 0; i < n / 2; ++i)
      if (fabsf(low[i]) < infinity) s[i] += low[i];
  }

  __device__ void wait_for_scores() {}
  __device__ void prepare_values() {}

  /// O += P V, complete when it returns.
  __device__ void values(int stage) {
    constexpr int chunk = Tile::dv * chunk_bytes >> 4;
#pragma unroll
    for (int first = 0; first < Tile::dv; first += columns) {
      const unsigned values = here(shared.v()[stage]);
      const unsigned long long b = descriptor(values), b_rest = descriptor(values + Shared::at.v_bytes / 2);
      float sum[columns / 2] = {}, low[columns / 2] = {};
      pin(s);
#pragma unroll
      for (int i = 0; i < n / 8; ++i) {
        // Operands are split while one product runs, so that few registers hold them.
        if (i > 1) wgmma_wait<1>();
#pragma unroll
        for (int j = 0; j < 4; ++j) pin(s[4 * i + j]);
        const Split a({this->probability(4 * i), this->probability(4 * i + 1), this->probability(4 * i + 2),
                       this->probability(4 * i + 3)});
        const int at = i / 4 * chunk + (first * chunk_bytes >> 4) + i % 4 * 2;
        multiply3(sum, low, a.high, a.rest, b + at, b_rest + at);
      }
      wgmma_wait<0>(sum, low);
#pragma unroll
      for (int i = 0; i < columns / 2; ++i) o[first / 2 + i] += fabsf(low[i]) < infinity ? sum[i] + low[i] : sum[i];
    }
  }
};

template <ForwardF32Tile Tile, class User>
__global__ void __launch_bounds__(block_of<Tile>.threads, 1)
    forward_f32_sm90(const __grid_constant__ ArgsOf<Tile, ForwardArgs> args, const __grid_constant__ User user) {
  if constexpr (in_turn<Tile>) {
    using Group = Warpgroup3Tf32<Tile, User>;
    forward_block<Group, Tile, User, ForwardInTurn90<Group, Tile, User>>(args, user);
  } else {
    forward_block<Warpgroup1Tf32<Tile, User>, Tile>(args, user);
  }
}

}  // namespace attune
