// codegen/cuda/kernels/keys_sm90.cuh — the backward of k and v on Hopper, for heads wider than 128: keys stay, four
// products
//
// A block keeps 64 keys of a key head and walks the queries that see them. Two groups of four warps share the work by
// product: one computes S^T = K Q^T, the probabilities and dV += P^T dO, the other dP^T = V dO^T and dK += dS^T Q, so
// that each holds one gradient in its registers. P goes from one to the other through shared memory, as it was rounded
// for its product; where scores have a slope, p times the slope goes in its place. One warp loads keys and queries, and
// prepares the ends of rows; another loads values and grad_o.
//
// Tile: Element (bf16, f16); m = n = 64 queries and keys; d: a multiple of 16 above 128, up to 256; dv: one above 64;
// stages of queries, 3; parts: in how many parts a group makes operands while the product of the part before runs, 1, 2
// or 4. SharedKeys90<Tile>::bytes of shared memory, 384 threads, a block for each tile of keys of each key head of each
// batch entry that k has.
#pragma once

#include "codegen/cuda/layout/keys_sm90.cuh"
#include "codegen/cuda/parts/group_sm90.cuh"

namespace attune {

/// Where each thing is, as layout/ places it.
template <class Tile>
struct SharedKeys90 {
  static constexpr int m = Tile::m, n = Tile::n, stages = Tile::stages;
  static constexpr KeysLayout90 at{.m = Tile::m,
                                   .n = Tile::n,
                                   .d = Tile::d,
                                   .dv = Tile::dv,
                                   .stages = Tile::stages,
                                   .element = ElementOf<typename Tile::Element>::bytes};
  static constexpr int chunk = at.chunk, grad_o_stages = at.grad_o_stages, d_chunks = at.d_chunks,
                       dv_chunks = at.dv_chunks, v = at.v, k = at.k, q = at.q, held = at.held, grad_o = at.grad_o,
                       weights = at.weights, under = at.under, delta = at.delta, words = at.words,
                       step_words = at.step_words, steps = at.steps, k_bytes = at.k_bytes, v_bytes = at.v_bytes,
                       q_bytes = at.q_bytes, grad_o_bytes = at.grad_o_bytes, q_full = at.q_full,
                       grad_o_full = at.grad_o_full, weights_full = at.weights_full, k_full = at.k_full,
                       v_full = at.v_full, k_held = at.k_held, bytes = at.bytes;
};

// ---- which keys --------------------------------------------------------------------------------------------------

/// The keys of a block: sets (a key head each) in sections that stay in the cache together; within one the first keys
/// come first, whose walks are the longest under a causal mask.
template <class Tile>
struct Keys90 {
  int b, kv_head, first;

  __device__ explicit Keys90(const BackwardArgs& args) {
    const int sets = args.kv_heads * (args.kv_shared ? 1 : args.batch), section = max(args.section, 1),
              tiles = (args.kv_len + Tile::n - 1) / Tile::n;
    const long long nth = blockIdx.x, of_section = static_cast<long long>(tiles) * section;
    const int before = static_cast<int>(nth / of_section) * section, here = min(section, sets - before),
              within = static_cast<int>(nth % of_section), set = before + within % here;
    b = set / args.kv_heads;
    kv_head = set % args.kv_heads;
    first = within / here * Tile::n;
  }
};

// ---- loading -----------------------------------------------------------------------------------------------------

/// A warp that loads: one has keys and queries, another values and grad_o.
template <class Tile, class User>
struct LoaderKeys90 {
  using Shared = SharedKeys90<Tile>;
  static constexpr int m = Tile::m, n = Tile::n, rows = m / 32;

  const BackwardArgs& args;
  const User& user;
  unsigned shared;
  int lane;
  Keys90<Tile> keys;

  struct Reader {
    Where at;
    typename User::Head head;
    Walk walk;
  };
  __device__ int readers() const { return args.kv_shared ? args.group * args.batch : args.group; }
  __device__ Reader reader(int nth) const {
    Reader out;
    out.at = {args.kv_shared ? nth / args.group : keys.b, keys.kv_head * args.group + nth % args.group, args.q_len,
              args.kv_len};
    out.head = user.head(out.at);
    Bands bands = user.q_bands(out.head, out.at, args.q_offset, args.q_offset + args.q_len, keys.first,
                               min(keys.first + n, args.kv_len));
    bands.begin -= args.q_offset, bands.end -= args.q_offset;
    bands.full_begin -= args.q_offset, bands.full_end -= args.q_offset;
    out.walk = walk_bands(bands, args.q_len, m);
    return out;
  }

  __device__ RowEnd end(const Reader& of, int tile, int nth) const {
    const int q = tile * m + nth;
    if (q >= args.q_len) return no_row();
    const auto of_row = [&](const Rows& all) {
      return __ldg(all.data + of.at.b * all.batch + of.at.h * all.head + q * all.position);
    };
    const Int origin = args.q_offset + tile * m, at = args.q_offset + q;
    return row_end(of_row(args.lse), user.rest(of.head, user.row(of.head, of.at, at), of.at, origin, at),
                   of_row(args.delta));
  }

  /// A box of this block's keys or values.
  __device__ void load_own(int into, const TensorMap& map, unsigned full, int chunk) const {
    load_box(shared + into, map, full, chunk * Shared::chunk, keys.first, keys.kv_head, args.kv_shared ? 0 : keys.b);
  }
  /// Queries or grad_o.
  __device__ void load(int into, const TensorMap& map, unsigned full, int chunks, const Where& at, int tile) const {
    barrier_expect(full, chunks * m * chunk_bytes);
    for (int c = 0; c < chunks; ++c)
      load_box(shared + into + c * m * chunk_bytes, map, full, c * Shared::chunk, tile * m, at.h, at.b);
  }

  template <bool OfQueries>
  __device__ void load_keys(int steps) const {
    const unsigned full = shared + (OfQueries ? Shared::k_full : Shared::v_full);
    shared_put(shared + Shared::steps + (OfQueries ? 0 : 4), steps);
    if (steps == 0) return barrier_arrive(full);
    barrier_expect(full, OfQueries ? Shared::k_bytes : Shared::v_bytes);
    if constexpr (OfQueries) {
      load_own(Shared::held, args.k_map, full, 0);
      for (int c = 1; c < Shared::d_chunks; ++c) load_own(Shared::k + (c - 1) * n * chunk_bytes, args.k_map, full, c);
    } else {
      for (int c = 0; c < Shared::dv_chunks; ++c) load_own(Shared::v + c * n * chunk_bytes, args.v_map, full, c);
    }
  }

  template <bool OfQueries>
  __device__ void run() {
    constexpr int stages = OfQueries ? Shared::stages : Shared::grad_o_stages;
    int steps = 0;
    for (int g = 0; g < readers(); ++g) steps += reader(g).walk.count;
    if (lane == 0) load_keys<OfQueries>(steps);
    __syncwarp();
    int nth = 0;
    Place<stages> place;
#pragma unroll 1
    for (int g = 0; g < readers(); ++g) {
      const Reader of = reader(g);
#pragma unroll 1
      for (int i = 0; i < of.walk.count; ++i, ++nth) {
        const int tile = of.walk.tile(i);
        // The ends of this lane's rows are read before the stage is free.
        RowEnd ends[rows];
#pragma unroll
        for (int j = 0; j < rows; ++j) ends[j] = end(of, tile, 32 * j + lane);
        const unsigned full = shared + (OfQueries ? Shared::q_full : Shared::grad_o_full) + 16 * place.stage;
        barrier_wait(full + 8, place.phase ^ 1);
        // The first chunk of the keys has to leave the last stage before.
        if (OfQueries && nth == stages - 1) barrier_wait(shared + Shared::k_held, 0);
#pragma unroll
        for (int j = 0; j < rows; ++j)
          shared_put(shared + (OfQueries ? Shared::under : Shared::delta) + 4 * (place.stage * m + 32 * j + lane),
                     __float_as_int(OfQueries ? ends[j].under : ends[j].delta));
        if constexpr (OfQueries) {
          const bool whole = of.walk.is_full(i) && keys.first + n <= args.kv_len;
          const int word = lane == 0 ? tile : lane == 1 ? of.at.b : lane == 2 ? of.at.h : whole;
          if (lane < Shared::step_words)
            shared_put(shared + Shared::words + 4 * (place.stage * Shared::step_words + lane), word);
        }
        __syncwarp();
        if (lane == 0) {
          if constexpr (OfQueries)
            load(Shared::q + place.stage * Shared::q_bytes, args.q_map, full, Shared::d_chunks, of.at, tile);
          else
            load(Shared::grad_o + place.stage * Shared::grad_o_bytes, args.grad_o_map, full, Shared::dv_chunks, of.at,
                 tile);
        }
        place.next();
      }
    }
  }
};

// ---- computing ---------------------------------------------------------------------------------------------------

/// Says that this warp is done with a stage, or has filled one, at its barrier.
__device__ inline void arrive_as_warp(unsigned barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}

/// The group that has scores, probabilities and dv.
template <class Tile, class User>
struct ScoresOfKeys90 : KeysByQueries<Tile, User> {
  using Element = typename Tile::Element;
  using Shared = SharedKeys90<Tile>;
  using Pairs = KeysByQueries<Tile, User>;
  using Pairs::args, Pairs::user, Pairs::shared, Pairs::lane, Pairs::warp, Pairs::s, Pairs::at, Pairs::head,
      Pairs::factor, Pairs::origin, Pairs::is_kept;
  static constexpr int m = Tile::m;

  float dv[Tile::dv / 2];
  unsigned p[m / 4], held[16];

  /// The first chunk of the keys goes to registers, as an operand.
  __device__ void hold_keys() {
    const int row = 16 * warp + (lane & 15);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load_blocks(held + 4 * i, shared + Shared::held + row * chunk_bytes + (((2 * i + (lane >> 4)) ^ (row & 7)) << 4));
    arrive_as_warp(shared + Shared::k_held, lane);
  }

  __device__ void scores(int stage) {
    const unsigned q = shared + Shared::q + stage * Shared::q_bytes;
    wgmma_fence();
    across_chunks<Element, Tile::d - Shared::chunk, Tile::n>(s, shared + Shared::k, q + m * chunk_bytes);
    Product<m, Element>::template rs4<Major::k>(s, held, descriptor(q), 1);
    wgmma_commit();
  }

  /// Probabilities of queries [8 From, 8 To), as operands in `p`, and what dS takes of them on its way to the other
  /// group.
  template <int From, int To>
  __device__ void weigh(int stage) {
    const unsigned ends = shared + Shared::under + 4 * (stage * m + 2 * (lane & 3));
    float2 under{};
    float low[2];
    this->template each_pair<false, From, To>(
        [&](int i, int e, int r, const auto& row, const auto& col, Int q, Int kv, bool) {
          if (e == 0 && r == 0) under = shared_get2(ends + 32 * i);
          const int nth = 4 * i + 2 * r + e;
          const float given = s[nth];
          const float to = probability_of(user, head, row, col, at, origin, q, kv, factor, e ? under.y : under.x,
                                          is_kept(nth), given);
          if (e == 0)
            low[r] = to;
          else
            p[2 * i + r] = pack<Element>(low[r], to);
          if constexpr (User::gradient.has_slope)
            s[nth] = is_kept(nth) ? to * user.slope(given, head, row, col, at, origin, q, kv) : 0.0f;
        });
    // With a slope, p times it goes to the other group: rounded likewise.
    const unsigned into = shared + Shared::weights + 16 * (32 * warp + lane);
#pragma unroll
    for (int i = From / 2; i < To / 2; ++i) {
      unsigned w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        w[j] = User::gradient.has_slope
                   ? pack<Element>(s[8 * i + 4 * (j / 2) + 2 * (j % 2)], s[8 * i + 4 * (j / 2) + 2 * (j % 2) + 1])
                   : p[4 * i + j];
      shared_put(into + 2048 * i, w[0], w[1], w[2], w[3]);
    }
  }

  __device__ void run(const Keys90<Tile>& keys) {
    for (float& x : dv) x = 0;
    this->enter_keys(keys.first);
    barrier_wait(shared + Shared::k_full, 0);
    const int steps = uniform(shared_get(shared + Shared::steps));
    const unsigned weights = shared + Shared::weights_full + 16 * warp;
    if (steps > 0) {
      barrier_wait(shared + Shared::q_full, 0);
      pin(dv);
      hold_keys();
      scores(0);
      Place<Shared::stages> q;
      Place<Shared::grad_o_stages> grad_o;
#pragma unroll 1
      for (int nth = 0; nth < steps; ++nth) {
        const unsigned words = shared + Shared::words + 4 * Shared::step_words * q.stage,
                       grad_o_full = shared + Shared::grad_o_full + 16 * grad_o.stage;
        this->enter_head(uniform(shared_get(words + 4)), uniform(shared_get(words + 8)));
        this->enter_queries(uniform(shared_get(words)));
        const int whole = uniform(shared_get(words + 12));
        // The other group has taken the weights of the step before.
        barrier_wait(weights + 8, (nth & 1) ^ 1);
        wgmma_wait<0>();
        pin(s);
        pin(dv);
        this->remove(whole);
        each_part<Tile::parts>([&]<int Nth>() {
          constexpr int from = Nth * (m / 16) / Tile::parts, to = (Nth + 1) * (m / 16) / Tile::parts;
          weigh<2 * from, 2 * to>(q.stage);
          if constexpr (Nth + 1 == Tile::parts) {
            arrive_as_warp(weights, lane);
          }
          if constexpr (Nth == 0) barrier_wait(grad_o_full, grad_o.phase);
          along<Element, m, from, to>(dv, p, shared + Shared::grad_o + grad_o.stage * Shared::grad_o_bytes);
        });
        arrive_as_warp(shared + Shared::q_full + 16 * q.stage + 8, lane);
        q.next();
        grad_o.next();
        // After the last step the scores are of anything: a branch around products would serialise all.
        if (nth + 1 < steps) barrier_wait(shared + Shared::q_full + 16 * q.stage, q.phase);
        scores(q.stage);
        wgmma_wait<1>();
        pin(dv);
        arrive_as_warp(grad_o_full + 8, lane);
      }
      wgmma_wait<0>();
      pin(s);
      pin(dv);
    }
    if constexpr (User::gradient.removes)
      if (args.odd && __any_sync(~0u, is_odd(dv)) && lane == 0) *args.odd = 1;
    // Only this group reads the keys, whose memory results pass through.
    named_sync(1, 128);
    if (!args.grad_v.to.data) return;
    const unsigned area = shared + Shared::k + 4096 * warp;
    stage_sixteen(dv, 1, area, lane, [&](int first) {
      store_rows(args.grad_v, area, keys.b, keys.kv_head, Stretch{0, args.kv_len}, keys.first + 16 * warp, first,
                 args.dv, lane);
    });
  }
};

/// The group that has dP, dS and dk.
template <class Tile, class User>
struct FlowsOfKeys90 {
  using Element = typename Tile::Element;
  using Shared = SharedKeys90<Tile>;
  static constexpr int m = Tile::m;

  const BackwardArgs& args;
  unsigned shared;
  int lane, warp;
  float dp[m / 2], dk[Tile::d / 2];
  unsigned ds[m / 4];

  __device__ void flows(int stage) {
    wgmma_fence();
    across<Element, Tile::dv, Tile::n>(dp, shared + Shared::v, shared + Shared::grad_o + stage * Shared::grad_o_bytes);
  }

  /// dS of queries [16 From, 16 To), as operands in `ds`.
  template <int From, int To>
  __device__ void join(int stage) {
    const unsigned ends = shared + Shared::delta + 4 * (stage * m + 2 * (lane & 3)),
                   weights = shared + Shared::weights + 16 * (32 * warp + lane);
#pragma unroll
    for (int i = 2 * From; i < 2 * To; ++i) {
      const float2 delta = shared_get2(ends + 32 * i);
      if (i % 2 == 0) {
        const float4 all = shared_get4(weights + 2048 * (i / 2));
        ds[2 * i] = __float_as_uint(all.x), ds[2 * i + 1] = __float_as_uint(all.y);
        ds[2 * i + 2] = __float_as_uint(all.z), ds[2 * i + 3] = __float_as_uint(all.w);
      }
      const float4 w{low_of<Element>(ds[2 * i]), high_of<Element>(ds[2 * i]), low_of<Element>(ds[2 * i + 1]),
                     high_of<Element>(ds[2 * i + 1])};
      ds[2 * i] = pack<Element>(w.x * (dp[4 * i] - delta.x), w.y * (dp[4 * i + 1] - delta.y));
      ds[2 * i + 1] = pack<Element>(w.z * (dp[4 * i + 2] - delta.x), w.w * (dp[4 * i + 3] - delta.y));
    }
  }

  __device__ void run(const Keys90<Tile>& keys) {
    for (float& x : dk) x = 0;
    barrier_wait(shared + Shared::v_full, 0);
    const int steps = uniform(shared_get(shared + Shared::steps + 4));
    const unsigned weights = shared + Shared::weights_full + 16 * warp;
    if (steps > 0) {
      barrier_wait(shared + Shared::grad_o_full, 0);
      pin(dk);
      flows(0);
      Place<Shared::stages> q;
      Place<Shared::grad_o_stages> grad_o;
#pragma unroll 1
      for (int nth = 0; nth < steps; ++nth) {
        const unsigned q_full = shared + Shared::q_full + 16 * q.stage;
        barrier_wait(weights, nth & 1);
        wgmma_wait<0>();
        pin(dp);
        pin(dk);
        each_part<Tile::parts>([&]<int Nth>() {
          constexpr int from = Nth * (m / 16) / Tile::parts, to = (Nth + 1) * (m / 16) / Tile::parts;
          join<from, to>(grad_o.stage);
          if constexpr (Nth + 1 == Tile::parts) {
            arrive_as_warp(weights + 8, lane);
          }
          if constexpr (Nth == 0) barrier_wait(q_full, q.phase);
          along<Element, m, from, to>(dk, ds, shared + Shared::q + q.stage * Shared::q_bytes);
        });
        arrive_as_warp(shared + Shared::grad_o_full + 16 * grad_o.stage + 8, lane);
        q.next();
        grad_o.next();
        if (nth + 1 < steps) barrier_wait(shared + Shared::grad_o_full + 16 * grad_o.stage, grad_o.phase);
        flows(grad_o.stage);
        wgmma_wait<1>();
        pin(dk);
        arrive_as_warp(q_full + 8, lane);
      }
      wgmma_wait<0>();
      pin(dp);
      pin(dk);
    }
    if constexpr (User::gradient.removes)
      if (args.odd && __any_sync(~0u, is_odd(dk)) && lane == 0) *args.odd = 1;
    // Only this group reads the values, whose memory results pass through.
    named_sync(2, 128);
    if (!args.grad_k.to.data) return;
    const unsigned area = shared + Shared::v + 4096 * warp;
    stage_sixteen(dk, args.scale, area, lane, [&](int first) {
      store_rows(args.grad_k, area, keys.b, keys.kv_head, Stretch{0, args.kv_len}, keys.first + 16 * warp, first,
                 args.d, lane);
    });
  }
};

template <class Tile, class User>
__global__ void __launch_bounds__(384, 1)
    keys_sm90(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  using Shared = SharedKeys90<Tile>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  if (threadIdx.x == 0) {
    // Stages of queries, then of grad_o.
    for (int i = 0; i < Shared::stages + Shared::grad_o_stages; ++i) {
      barrier_init(shared + Shared::q_full + 16 * i, 1);
      barrier_init(shared + Shared::q_full + 16 * i + 8, 8);
    }
    for (int i = 0; i < 8; ++i) barrier_init(shared + Shared::weights_full + 8 * i, 1);
    barrier_init(shared + Shared::k_full, 1);
    barrier_init(shared + Shared::v_full, 1);
    barrier_init(shared + Shared::k_held, 4);
    barrier_init_done();
  }
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / 128),
            warp = uniform(static_cast<int>(threadIdx.x) / 32 % 4), lane = static_cast<int>(threadIdx.x) % 32;
  const Keys90<Tile> keys(args);
  if (group == 0) {
    registers_down<40>();
    LoaderKeys90<Tile, User> loader{args, user, shared, lane, keys};
    if (warp == 0) loader.template run<true>();
    if (warp == 1) loader.template run<false>();
  } else {
    registers_up<232>();
    if (group == 1)
      ScoresOfKeys90<Tile, User>{{args, user, shared, 0, lane, warp}}.run(keys);
    else
      FlowsOfKeys90<Tile, User>{args, shared, lane, warp}.run(keys);
  }
}

}  // namespace attune
