// tests/codegen/kernels/forward_plain.cuh — the shortest forward: f32, a block per query, all keys in each thread
//
// The library does not have it: it is added by the steps of docs/adding-a-kernel.md, and tests run it.
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/mod.cuh"

namespace attune {

template <class Tile, Mod User>
__global__ void __launch_bounds__(Tile::threads)
    forward_plain(const __grid_constant__ ForwardArgs args, const __grid_constant__ User user) {
  const int query = blockIdx.x % args.q_len, h = blockIdx.x / args.q_len % args.q_heads,
            b = blockIdx.x / args.q_len / args.q_heads, q = args.q_offset + query;
  const auto at_row = [&](const Strided& t, int b, int h, int position) {
    return static_cast<const float*>(t.data) + b * t.batch + h * t.head + position * t.position;
  };
  const int kv_b = args.kv_shared ? 0 : b, kv_h = h / args.group;
  const float* q_row = at_row(args.q, b, h, query);
  const Where at{b, h, args.q_len, args.kv_len};
  const auto head = user.head(at);
  const auto row = user.row(head, at, q);
  const Reach<User> reach(user, head, row, at, q, 0);
  // f(exponent, column's fields, key) for each pair that stays.
  const auto each = [&](auto f) {
    for (int kv = 0; kv < args.kv_len; ++kv) {
      const auto col = user.col(head, at, args.q_offset, kv);
      if (!reach.holds(kv) || !user.keep(head, row, col, at, q, kv)) continue;
      const float* k_row = at_row(args.k, kv_b, kv_h, kv);
      float s = 0;
      for (int i = 0; i < args.d; ++i) s += q_row[i * args.q.element] * k_row[i * args.k.element];
      f(User::traits.scaled ? s * user.factor(head) : user.exponent(s, head, row, col, at, args.q_offset, q, kv), col,
        kv);
    }
  };
  float top = __builtin_bit_cast(float, 0xff800000u), sum = 0;
  each([&](float x, const auto&, int) { top = fmaxf(top, x); });
  each([&](float x, const auto&, int) { sum += exp2f(x - top); });
  for (int c = threadIdx.x; c < args.dv; c += blockDim.x) {
    float out = 0;
    each([&](float x, const auto& col, int kv) {
      const float p = user.prob(exp2f(x - top) / sum, head, row, col, at, q, kv);
      out += p * at_row(args.v, kv_b, kv_h, kv)[c * args.v.element];
    });
    const_cast<float*>(at_row(args.o, b, h, query))[c * args.o.element] = out;
  }
}

}  // namespace attune
