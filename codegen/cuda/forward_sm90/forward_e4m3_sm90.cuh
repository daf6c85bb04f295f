// codegen/cuda/forward_sm90/forward_e4m3_sm90.cuh — the forward on Hopper where q, k and v are FP8 (E4M3): products of
// 8 bits
//
// The kernel of forward_sm90.cuh, with these differences. FP8 products need both operands K-major, so each tile of
// values is transposed, keys along rows: by two warps of the producer's warpgroup, or before by transpose_v_sm90.cuh.
// Each sixteen keys are permuted into the order in which a thread holds their scores, so its probabilities are an
// operand without a shuffle. Probabilities are powers of two up to 2^8, within the range of E4M3, and P V is summed up
// tile by tile in f32, because FP8 accumulators of tensor cores keep only some 14 bits. If values are wider than 128,
// registers hold P V of a part of the columns at a time, and no scores of the next tile meanwhile.
#pragma once

#include "codegen/cuda/forward_sm90/consumer.cuh"
#include "codegen/cuda/forward_sm90/forward_sm90.cuh"
#include "codegen/cuda/forward_sm90/transposer.cuh"
#include "codegen/cuda/ptx/arithmetic.cuh"

namespace attune {

/// A ForwardTile of FP8. If values are transposed before (`transposed`), v_map describes their tiles; wider than 128
/// they are, and `columns` of them are multiplied at a time.
template <class Tile>
concept ForwardE4m3Tile = ForwardTile<Tile> && ElementOf<typename Tile::Element>::bytes == 1 &&
                          sizeof(typename Tile::Out) == 2 && Tile::n % 32 == 0 &&
                          (Tile::dv <= 128 ||
                           (Tile::n <= 128 && come_transposed<Tile> && Tile::dv % Tile::columns == 0));

// ---- computing ---------------------------------------------------------------------------------------------------

/// What both widths of values have in common: P as an operand.
template <class Tile, class User>
struct WarpgroupOfE4m3 : Warpgroup90<Tile, User> {
  using Base = Warpgroup90<Tile, User>;
  using Base::n, Base::o, Base::p, Base::s;

  float back[2];  ///< scales P V back, if a prob mod may have given P any size

  __device__ void enter(const Item& item) {
    Base::enter(item);
    for (float& x : o) x = 0;
  }
  /// Adds products, of columns from 2 * `first` on, to the results.
  template <int N>
  __device__ void add(const float (&products)[N], int first = 0) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if constexpr (User::traits.has_prob)
        o[first + i] += products[i] * back[i / 2 % 2];
      else
        add_in_place(o[first + i], products[i]);  // a plain + moved half of the registers about
  }

  /// Scales each row's P to the range of E4M3, after a mod that may have given P any size.
  __device__ void fit() {
    float most[2] = {};
    this->each([&](int i, int r, int e) { most[r] = fmaxf(most[r], fabsf(s[4 * i + 2 * r + e])); });
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // By a power of two: the largest becomes 2^7 to 2^8. An infinity makes its row non-finite.
      const int exponent = max(static_cast<int>(__float_as_uint(row_max(most[r])) >> 23), 8);
      by[r] = __uint_as_float(static_cast<unsigned>(261 - exponent) << 23);
      back[r] = exponent < 255 ? __uint_as_float(static_cast<unsigned>(exponent - 7) << 23) : infinity - infinity;
    }
    this->each([&](int i, int r, int e) { s[4 * i + 2 * r + e] *= by[r]; });
  }
  __device__ void operand() {
    if constexpr (User::traits.has_prob) fit();
#pragma unroll
    for (int j = 0; j < n / 32; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float* x = s + 16 * j + 8 * half + 2 * r;
          p[4 * j + 2 * half + r] = pack_e4m3(x[0], x[1], x[4], x[5]);
        }
  }
};

/// Values up to 128 wide.
template <class Tile, class User>
struct WarpgroupE4m3 : WarpgroupOfE4m3<Tile, User> {
  using Base = WarpgroupOfE4m3<Tile, User>;
  using Base::n, Base::p, Base::shared;
  using typename Base::Shared;

  float products[Tile::dv / 2];  ///< P V of the last tile

  __device__ static void transpose_v(const ForwardArgs& args, Shared90<Tile> shared) {
    const Transposer<Tile> transposer{uniform(static_cast<int>(threadIdx.x) / 32 - 2),
                                      static_cast<int>(threadIdx.x) % 32};
    Place<Tile::stages> v;  // the place in both rings: one each took 2 % of the kernel's rate
    Items<Tile, User> items{args, shared};
    for (;;) {
      const Item item = items.template take<true>();
      __syncwarp();
      if (transposer.lane == 0) items.done();
      if (item.index == Item::stop) return;
#pragma unroll 1
      for (int i = 0; i < item.walk.count; ++i) {
        const StageBarriers loaded = StageBarriers{shared.loaded_full()}[v.stage],
                            transposed = StageBarriers{shared.v_full()}[v.stage];
        loaded.wait(v.phase);
        transposed.acquire(v.phase);
        transposer.transpose(shared.loaded(v.stage), shared.v()[v.stage]);
        proxy_fence();
        __syncwarp();
        if (transposer.lane == 0) {
          barrier_arrive(loaded.empty());
          barrier_arrive(transposed.full);
        }
        v.next();
      }
    }
  }

  __device__ void values(int stage, int) {
    constexpr int steps = n / 32, of_fours = steps / 4 * 4, chunk = Tile::dv * chunk_bytes >> 4;
    const unsigned long long b = descriptor(shared.v()[stage]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < of_fours; i += 4)
      Product<Tile::dv, e4m3>::template rs4<Major::k>(products, p + 4 * i, b + i / 4 * chunk, i > 0);
#pragma unroll
    for (int i = of_fours; i < steps; ++i)
      Product<Tile::dv, e4m3>::template rs<Major::k>(products, p + 4 * i, b + i / 4 * chunk + i % 4 * 2, i > 0);
    wgmma_commit();
  }
  __device__ void pin_products() { pin(products); }
  __device__ void take_in() { this->add(products); }
};

/// Wider values: P V of some columns is added to the results while the tensor cores compute the next ones.
template <class Tile, class User>
struct WarpgroupWideE4m3 : WarpgroupOfE4m3<Tile, User> {
  using Base = WarpgroupOfE4m3<Tile, User>;
  using Base::n, Base::p, Base::s, Base::shared;
  using typename Base::Shared;
  static constexpr bool turns_of_both = true;
  static constexpr int columns = Tile::columns, parts = Tile::dv / columns,
                       ahead = columns == 64 ? 1 : 2;  ///< parts under way while one is added

  /// S = Q K^T, issued.
  __device__ void scores(int q_stage, int stage) {
    pin(s);
    wgmma_fence();
    Base::scores(q_stage, stage);
  }
  __device__ void wait_for_scores() { wgmma_wait<0>(s); }
  __device__ void prepare_values() { this->operand(); }

  /// P V of columns [columns * nth, ...), issued.
  __device__ void multiply(float (&products)[columns / 2], unsigned long long values, int nth) {
    constexpr int steps = n / 32, across = columns * chunk_bytes >> 4;
    pin(products);
    wgmma_fence();
    if constexpr (steps == 4) {
      Product<columns, e4m3>::template rs4<Major::k>(products, p, values + nth * across, 0);
    } else {
#pragma unroll
      for (int i = 0; i < steps; ++i)
        Product<columns, e4m3>::template rs<Major::k>(products, p + 4 * i, values + nth * across + i * 2, i > 0);
    }
    wgmma_commit();
  }
  /// O += P V, complete when it returns.
  __device__ void values(int stage) {
    const unsigned long long values = descriptor(shared.v()[stage]);
    float products[ahead + 1][columns / 2];
    add_parts<0>(products, values);
  }

 private:
  /// Issues part `Nth`, and adds the one `ahead` parts before.
  template <int Nth>
  __device__ void add_parts(float (&products)[ahead + 1][columns / 2], unsigned long long values) {
    if constexpr (Nth < parts) multiply(products[Nth % (ahead + 1)], values, Nth);
    if constexpr (Nth >= ahead) {
      constexpr int done = Nth - ahead, under_way = Nth < parts ? ahead : parts - 1 - done;
      wgmma_wait<under_way>(products[done % (ahead + 1)]);
      this->add(products[done % (ahead + 1)], done * columns / 2);
    }
    if constexpr (Nth < parts - 1 + ahead) add_parts<Nth + 1>(products, values);
  }
};

template <ForwardE4m3Tile Tile, class User>
__global__ void __launch_bounds__(block_of<Tile>.threads, 1)
    forward_e4m3_sm90(const __grid_constant__ ArgsOf<Tile, ForwardArgs> args, const __grid_constant__ User user) {
  if constexpr (in_turn<Tile>) {
    using Group = WarpgroupWideE4m3<Tile, User>;
    forward_block<Group, Tile, User, ForwardInTurn90<Group, Tile, User>>(args, user);
  } else {
    forward_block<WarpgroupE4m3<Tile, User>, Tile>(args, user);
  }
}

}  // namespace attune
