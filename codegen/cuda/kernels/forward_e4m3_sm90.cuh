// codegen/cuda/kernels/forward_e4m3_sm90.cuh — the forward on Hopper where q, k and v are FP8 (E4M3): products of 8
// bits
//
// The kernel of forward_sm90.cuh, with three differences. FP8 products need both operands K-major, so each tile of
// values is transposed, keys along rows: by two warps of the producer's warpgroup, or before by transpose_v_sm90.cuh.
// Each sixteen keys are permuted into the order in which a thread holds their scores, so its probabilities are an
// operand without a shuffle. Probabilities are powers of two up to 2^8, within the range of E4M3, and P V is summed up
// tile by tile in f32, because FP8 accumulators of tensor cores keep only some 14 bits.
//
// Tile: as in forward_sm90.cuh; Element is e4m3, Out bf16 or f16; n a multiple of 32; transposed: values are transposed
// before, and v_map describes their tiles.
#pragma once

#include "codegen/cuda/kernels/forward_sm90.cuh"
#include "codegen/cuda/parts/transposer_sm90.cuh"
#include "codegen/cuda/ptx/arithmetic.cuh"

namespace attune {

// ---- computing ---------------------------------------------------------------------------------------------------

template <class Tile, class User>
struct WarpgroupE4m3 : Warpgroup90<Tile, User> {
  using Base = Warpgroup90<Tile, User>;
  using Base::lane, Base::n, Base::o, Base::p, Base::s, Base::shared;
  using typename Base::Shared;

  float products[Tile::dv / 2];  ///< P V of the last tile
  float back[2];                 ///< scales them back, if a prob mod may have given P any size

  __device__ static void transpose_v(const ForwardArgs& args, unsigned shared) {
    using Shared = Shared90<Tile>;
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
        const StageBarriers loaded{shared + Shared::loaded_full + StageBarriers::bytes * v.stage},
            transposed{shared + Shared::v_full + StageBarriers::bytes * v.stage};
        loaded.wait(v.phase);
        transposed.acquire(v.phase);
        transposer.transpose(shared + Shared::loaded + v.stage * Shared::loaded_bytes,
                             shared + Shared::v + v.stage * Shared::v_bytes);
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

  __device__ void enter(const Item& item) {
    Base::enter(item);
    for (float& x : o) x = 0;
  }
  __device__ void values(int stage, int) {
    constexpr int steps = n / 32, of_fours = steps / 4 * 4, chunk = Tile::dv * chunk_bytes >> 4;
    const unsigned long long b = descriptor(shared + Shared::v + stage * Shared::v_bytes);
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
  __device__ void take_in() {
#pragma unroll
    for (int i = 0; i < Tile::dv / 2; ++i)
      if constexpr (User::traits.has_prob)
        o[i] += products[i] * back[i / 2 % 2];
      else
        add_in_place(o[i], products[i]);  // a plain + moved half of the registers about
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

template <ForwardTile Tile, class User>
__global__ void __launch_bounds__(128 * (Tile::m / 64 + 1), 1)
    forward_e4m3_sm90(const __grid_constant__ ArgsOf<Tile, ForwardArgs> args, const __grid_constant__ User user) {
  forward_block<WarpgroupE4m3<Tile, User>, Tile>(args, user);
}

}  // namespace attune
