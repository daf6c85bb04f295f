// codegen/cuda/forward_e4m3_sm90.cuh — the forward on Hopper where q, k and v hold e4m3: products of 8 bits
//
// The kernel of forward_sm90.cuh, but for this. Products take both operands with their rows along what is summed over,
// so two warps beside the one that loads turn each tile of values round, keys along rows. They put the keys of each
// sixteen in the order in which a thread holds their scores, which makes a thread's probabilities an operand as they
// are. Probabilities are powers of two up to 2^8, the range of their type, and products with values are summed up
// tile by tile: the tensor cores' own sums keep some 14 bits.
//
// Tile: as there; Element is e4m3, Out bf16 or f16; n a multiple of 32.
#pragma once

#include "forward_sm90.cuh"

namespace attune {

// ---- values turned round -----------------------------------------------------------------------------------------

/// Four matrices of 8 rows of 16 bytes, transposed in units of two bytes: lane i of 32 gives the address of row i % 8
/// of matrix i / 8, and gets units i / 4 of rows 2 (i % 4) and the next.
__device__ inline void load_turned(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

/// Within each 16 keys, place 4 c + j of a turned row has key 8 (j / 2) + 2 c + j % 2: the order in which lane c of
/// four holds the scores of a row. A warp turns 32 keys by 16 columns at a time.
template <class Tile>
struct Turner {
  static constexpr int wide = Tile::dv / 16, each = wide / turners<Tile>;
  static_assert(turners<Tile> == 2 && Tile::n % 32 == 0 && wide % 2 == 0 && wide <= 8);

  int warp, lane;

  /// Turns this warp's share of a tile: every other 16 columns. Several loads are issued before the stores that wait
  /// for them: one after the other, they took longer than all else.
  __device__ void turn(unsigned loaded, unsigned turned) const {
    // A lane has keys 2 c, 2 c + 1 and these + 8, of columns 2 g and 2 g + 1. Of each eight rows that are stored at
    // once no two may be congruent modulo 8: lanes of g < 4 first store the even columns, the others the odd ones.
    const bool low = lane < 16;
    const unsigned first = low ? 0x6420 : 0x7531, second = low ? 0x7531 : 0x6420;
    const int g = lane % 8, row = 16 * warp + 2 * g + ((g >= 4) != (lane / 8 % 2 == 1)), half = lane / 16;
    unsigned from = loaded + lane * chunk_bytes + ((warp ^ (lane & 7)) << 4);
    constexpr int blocks = Tile::n / 32, at_once = 1;  // of 32 keys
#pragma unroll 1
    for (int keys = 0; keys < blocks; keys += at_once) {
      unsigned x[at_once][each][4];
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int j = 0; j < each; ++j) load_turned(x[i][j], (from ^ 2 * j << 4) + 32 * i * chunk_bytes);
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const unsigned to = turned + (keys + i) / 4 * (Tile::dv * chunk_bytes) + row * chunk_bytes +
                            ((2 * ((keys + i) % 4) + half ^ (row & 7)) << 4);
#pragma unroll
        for (int j = 0; j < each; ++j)
          store_matrices(to + 32 * j * chunk_bytes, __byte_perm(x[i][j][0], x[i][j][1], first),
                         __byte_perm(x[i][j][0], x[i][j][1], second), __byte_perm(x[i][j][2], x[i][j][3], first),
                         __byte_perm(x[i][j][2], x[i][j][3], second));
      }
      from += 32 * at_once * chunk_bytes;
    }
  }
};

// ---- computing ---------------------------------------------------------------------------------------------------

template <class Tile, class User>
struct GroupE4m3 : Group90<Tile, User> {
  using Base = Group90<Tile, User>;
  using Base::lane, Base::n, Base::o, Base::p, Base::s, Base::shared;
  using typename Base::Shared;

  float products[Tile::dv / 2];  ///< of the last tile's probabilities with its values
  float back[2];                 ///< makes them results, where a prob mod may have given probabilities of any size

  __device__ static void turn_values(const ForwardArgs& args, unsigned shared) {
    using Shared = Shared90<Tile>;
    const Turner<Tile> turner{uniform(static_cast<int>(threadIdx.x) / 32 - 2), static_cast<int>(threadIdx.x) % 32};
    Place<Tile::stages> v;
    Items<Tile, User> items{args, shared};
    for (;;) {
      const Item item = items.template take<true>();
      __syncwarp();
      if (turner.lane == 0) items.done();
      if (item.index == Item::stop) return;
#pragma unroll 1
      for (int i = 0; i < item.walk.count; ++i) {
        const unsigned loaded = shared + Shared::loaded_full + 16 * v.stage,
                       turned = shared + Shared::v_full + 16 * v.stage;
        barrier_wait(loaded, v.phase);
        barrier_wait(turned + 8, v.phase ^ 1);
        turner.turn(shared + Shared::loaded + v.stage * Shared::loaded_bytes,
                    shared + Shared::v + v.stage * Shared::v_bytes);
        proxy_fence();
        __syncwarp();
        if (turner.lane == 0) {
          barrier_arrive(loaded + 8);
          barrier_arrive(turned);
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
        asm volatile("add.f32 %0, %0, %1;" : "+f"(o[i]) : "f"(products[i]));  // an addition moved half of them about
  }

  /// Scales each row's probabilities to the range of e4m3, after a mod that may have made them any number.
  __device__ void fit() {
    float most[2] = {};
    this->each([&](int i, int r, int e) { most[r] = fmaxf(most[r], fabsf(s[4 * i + 2 * r + e])); });
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Powers of two: the largest number becomes 2^7 to 2^8. Infinity spoils its row.
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

template <class Tile, class User>
__global__ void __launch_bounds__(128 * (Tile::m / 64 + 1), 1)
    forward_e4m3_sm90(const __grid_constant__ ArgsOf<Tile, ForwardArgs> args, const __grid_constant__ User user) {
  forward_block<GroupE4m3<Tile, User>, Tile>(args, user);
}

}  // namespace attune
