// tests/codegen/probe.cuh — a kernel that shows what a generated source makes of every pair, one thread each
//
// In: q holds s and k holds p, f32 [b, h, q, kv]. Out: o holds {exponent, rest, keep, prob} a pair, and lse {sink,
// begin, end, full_begin, full_end} a row, whose bands are those of tiles of m queries.
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/mod.cuh"

namespace attune {

template <class Tile, Mod User>
__global__ void probe(const __grid_constant__ ForwardArgs args, const __grid_constant__ User user) {
  const int kv = blockIdx.x * blockDim.x + threadIdx.x, q = blockIdx.y;
  const int b = blockIdx.z / args.q_heads, h = blockIdx.z % args.q_heads;
  if (kv >= args.kv_len) return;
  const Where at{b, h, args.q_len, args.kv_len};
  const auto head = user.head(at);
  const int origin = args.q_offset, position = args.q_offset + q;
  const auto row = user.row(head, at, position);
  const auto col = user.col(head, at, origin, kv);
  const long long line = (static_cast<long long>(b) * args.q_heads + h) * args.q_len + q,
                  pair = line * args.kv_len + kv;
  const float s = static_cast<const float*>(args.q.data)[pair], p = static_cast<const float*>(args.k.data)[pair];
  float* out = static_cast<float*>(args.o.data) + 4 * pair;
  out[0] = User::traits.scaled ? s * user.factor(head) : user.exponent(s, head, row, col, at, origin, position, kv);
  out[1] = user.rest(head, row, at, origin, position);
  out[2] = Reach<User>(user, head, row, at, position, 0).holds(kv) && user.keep(head, row, col, at, position, kv);
  out[3] = user.prob(p, head, row, col, at, position, kv);
  if (kv != 0) return;
  const int begin = position / Tile::m * Tile::m;
  const Bands bands = user.bands(head, at, begin, begin + Tile::m);
  const float facts[5] = {user.sink(head, at), float(bands.begin), float(bands.end), float(bands.full_begin),
                          float(bands.full_end)};
  for (int i = 0; i < 5; ++i) args.lse.data[5 * line + i] = facts[i];
}

}  // namespace attune
