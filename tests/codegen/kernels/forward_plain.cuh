// tests/codegen/kernels/forward_plain.cuh — the shortest forward: f32, a block per query, all keys in each thread
//
// Not part of the library: tests add it by the steps of docs/adding-a-kernel.md and run it. It gets a struct of its own
// with the rows' largest exponents, which a previous kernel finds.
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

struct PlainArgs : ForwardArgs {
  float* tops;  ///< [batch, head, query]
};

}  // namespace attune

// What follows is for devices; the descriptor fills in the struct.
#ifdef __CUDACC__
#include "codegen/cuda/contract/mod.cuh"

namespace attune {

/// A row of scores, for both kernels.
template <Mod User>
struct PlainRow {
  const PlainArgs& args;
  const User& user;
  int query = static_cast<int>(blockIdx.x) % args.q_len, h = static_cast<int>(blockIdx.x) / args.q_len % args.q_heads,
      b = static_cast<int>(blockIdx.x) / args.q_len / args.q_heads, q = args.q_offset + query;
  int kv_b = args.kv_shared ? 0 : b, kv_h = h / args.group;
  Where at{b, h, args.q_len, args.kv_len};
  typename User::Head head = user.head(at);
  typename User::Row row = user.row(head, at, q);

  static const float* of(const Strided& t, int b, int h, int position) {
    return static_cast<const float*>(t.data) + b * t.batch + h * t.head + position * t.position;
  }
  /// Calls f(exponent, column's fields, key) for each pair that the mask keeps.
  template <class F>
  void each(F f) const {
    const Reach<User> reach(user, head, row, at, q, 0);
    const float* q_row = of(args.q, b, h, query);
    for (int kv = 0; kv < args.kv_len; ++kv) {
      const auto col = user.col(head, at, args.q_offset, kv);
      if (!reach.holds(kv) || !user.keep(head, row, col, at, q, kv)) continue;
      const float* k_row = of(args.k, kv_b, kv_h, kv);
      float s = 0;
      for (int i = 0; i < args.d; ++i) s += q_row[i * args.q.element] * k_row[i * args.k.element];
      f(User::traits.scaled ? s * user.factor(head) : user.exponent(s, head, row, col, at, args.q_offset, q, kv), col,
        kv);
    }
  }
};

template <class Tile, Mod User>
__global__ void plain_tops(const __grid_constant__ PlainArgs args, const __grid_constant__ User user) {
  const PlainRow<User> row{args, user};
  float top = __builtin_bit_cast(float, 0xff800000u);
  row.each([&](float x, const auto&, int) { top = fmaxf(top, x); });
  if (threadIdx.x == 0) args.tops[blockIdx.x] = top;
}

template <class Tile, Mod User>
__global__ void __launch_bounds__(Tile::threads)
    forward_plain(const __grid_constant__ PlainArgs args, const __grid_constant__ User user) {
  const PlainRow<User> row{args, user};
  const float top = args.tops[blockIdx.x];
  float sum = 0;
  row.each([&](float x, const auto&, int) { sum += exp2f(x - top); });
  for (int c = threadIdx.x; c < args.dv; c += blockDim.x) {
    float out = 0;
    row.each([&](float x, const auto& col, int kv) {
      const float p = user.prob(exp2f(x - top) / sum, row.head, row.row, col, row.at, row.q, kv);
      out += p * row.of(args.v, row.kv_b, row.kv_h, kv)[c * args.v.element];
    });
    const_cast<float*>(row.of(args.o, row.b, row.h, row.query))[c * args.o.element] = out;
  }
}

}  // namespace attune
#endif
