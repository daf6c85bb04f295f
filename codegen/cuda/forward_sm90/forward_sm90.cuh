// codegen/cuda/forward_sm90/forward_sm90.cuh — the forward on Hopper: TMA, a producer warp, consumer warpgroups,
// products from registers
//
// One warp loads (producer.cuh), one schedules tiles of queries (tile_scheduler.cuh), two or three
// consumer warpgroups compute 64 queries each (consumer.cuh): a warpgroup issues S = Q K^T of its next
// tile of keys, then O += P V of the previous tile, and computes the softmax of the new scores while P V runs.
// Warpgroups take turns at issuing, so the softmax of one overlaps the products of another. Blocks are persistent; the
// next queries load during a tile's epilogue. A type (KeySource) says where keys come from. Under a prob mod
// that is no multiple of a power of p, consumers visit the keys twice (ForwardTwoWalks90).
#pragma once

#include "codegen/cuda/forward_sm90/consumer.cuh"
#include "codegen/cuda/forward_sm90/producer.cuh"
#include "codegen/cuda/forward_sm90/softmax.cuh"

namespace attune {

/// What a Tile has: numbers and types that the host chooses once per kernel.
template <class Tile>
concept ForwardTile = requires {
  typename Tile::Element;  // of q, k and v: bf16, f16; e4m3 and float for kernels of their own
  typename Tile::Out;      // of o
  // m: queries, 64 for each consumer warpgroup; with one warpgroup, several blocks share an SM. n: keys.
  requires Tile::m == 64 || Tile::m == 128 || Tile::m == 192;
  requires Tile::n % 16 == 0;
  // Head widths, rounded up.
  requires Tile::d % 16 == 0 && Tile::dv % 16 == 0 && Tile::d <= 256 && Tile::dv <= 256;
  // Stages of keys and of values; stages of queries: with 2, the next queries load ahead.
  requires Tile::stages >= 2 || in_turn<Tile>;
  requires Tile::q_stages == 1 || Tile::q_stages == 2;
  // 1 if results have their own shared memory, 0 if they use that of the queries, 2 if that of values.
  requires Tile::own_o != 0 || Tile::q_stages == 1;
  // When a warpgroup passes its turn to issue: never (no turns), once both products are issued, once scores arrive.
  requires Tile::issue_order >= 0 && Tile::issue_order <= 2;
  // 1 if blocks take tiles from a common counter.
  requires Tile::dynamic == 0 || Tile::dynamic == 1;
  // Query heads that share a tile, so that a thread's rows, 8 apart, are of one head.
  requires 8 % Tile::heads == 0;
  // Dense or packed.
  Layout(Tile::layout);
  // 1 if the call asks for the rows' maxima.
  bool(Tile::max);
  // With per_entry, paged: rows of a box of keys, which divide n and a page's rows; n if keys are not paged.
};

/// The registers with which a consumer warpgroup computes 64 queries.
template <class Tile, class User>
struct Warpgroup90 : ForwardSoftmax90<Tile, User> {
  using Softmax = ForwardSoftmax90<Tile, User>;
  using Softmax::bytes, Softmax::group, Softmax::n, Softmax::o, Softmax::p, Softmax::s, Softmax::shared;
  using typename Softmax::Element, typename Softmax::Shared;

  /// Before products read the queries of this stage.
  __device__ void prepare_queries(int) {}
  /// S = Q K^T with the keys of this stage, issued but not awaited.
  __device__ void scores(int q_stage, int stage) {
    const unsigned long long a = descriptor(shared.q()[q_stage].from(64 * group));
    const unsigned long long b = descriptor(shared.k()[stage]);
    constexpr int a_chunk = Tile::m * chunk_bytes >> 4, b_chunk = n * chunk_bytes >> 4,
                  chunks = Tile::d / Shared::chunk, step = 32 / bytes;  // columns of a product
#pragma unroll
    for (int c = 0; c < chunks; ++c)
      Product<n, Element>::template ss4<Major::k, Major::k>(s, a + c * a_chunk, b + c * b_chunk, c > 0);
#pragma unroll
    for (int i = 0; i < Tile::d % Shared::chunk / step; ++i)
      Product<n, Element>::template ss<Major::k, Major::k>(s, a + chunks * a_chunk + i * 2,
                                                           b + chunks * b_chunk + i * 2, chunks + i > 0);
    wgmma_commit();
  }
  __device__ void values(int stage, int add) {
    const unsigned long long b = descriptor(shared.v()[stage], n * chunk_bytes);
    wgmma_fence();
    constexpr int step = 16 * chunk_bytes >> 4, steps = n / 16, of_fours = steps / 4 * 4;
#pragma unroll
    for (int i = 0; i < of_fours; i += 4)
      Product<Tile::dv, Element>::template rs4<Major::n>(o, p + 4 * i, b + i * step, add | (i > 0));
#pragma unroll
    for (int i = of_fours; i < steps; ++i)
      Product<Tile::dv, Element>::template rs<Major::n>(o, p + 4 * i, b + i * step, add | (i > 0));
    wgmma_commit();
  }
  /// Keeps the compiler from moving accesses to the accumulators of P V.
  __device__ void pin_products() { pin(o); }
  /// O takes in these accumulators.
  __device__ void take_in() {}
  /// P becomes an operand.
  __device__ void operand() {
#pragma unroll
    for (int i = 0; i < n / 4; ++i) p[i] = pack<Element>(s[2 * i], s[2 * i + 1]);
    if constexpr (Softmax::is_drawn) this->drawn.each([&](int i, int r, unsigned mask) { p[2 * i + r] &= mask; });
  }
};

/// Warps that transpose values.
template <class Tile>
constexpr int turners = transposes_values<Tile> ? 2 : 0;

/// Blocks that share an SM.
template <class Tile>
constexpr int blocks_of_sm = 1;
template <class Tile>
requires requires { Tile::blocks; }
constexpr int blocks_of_sm<Tile> = Tile::blocks;

template <class Tile>
constexpr Block90 block_of = forward_block90(Tile::m, blocks_of_sm<Tile>, is_per_entry<Tile>, is_drawn<Tile>);

/// One thread initialises the barriers of a block.
template <class Tile>
__device__ inline void init_barriers(Shared90<Tile> shared) {
  constexpr unsigned warps = Tile::m / 16;  // consumer warps
  Ring<Tile::q_stages>::init(shared.q_full(), 1, warps);
  Ring<Tile::stages>::init(shared.k_full(), 1 + number_warps<Tile>, warps);
  Ring<Tile::stages>::init(shared.v_full(), transposes_values<Tile> ? turners<Tile> : 1, warps);
  if constexpr (transposes_values<Tile>) Ring<Tile::stages>::init(shared.loaded_full(), 1, turners<Tile>);
  barrier_init(shared.known(), warps);
  if constexpr (leave_over_values<Tile>) barrier_init(shared.results_left(), warps);
  shared_put(shared.list_full(), 0);
  Ring<items_ahead<Tile>>::init(shared.item_full(), 1,
                                warps + 1 + turners<Tile> + number_warps<Tile> + values_have_warp<Tile>);
  if constexpr (is_per_entry<Tile>) barrier_init(shared.tail(), 1);
  barrier_init_done();
}

/// What all threads of a block run. Group: the registers of a consumer warpgroup; Consumer: what it does.
template <class Group, ForwardTile Tile, class User, class Consumer = ForwardConsumer90<Group, Tile, User>>
__device__ inline void forward_block(const ArgsOf<Tile, ForwardArgs>& args, const User& user) {
  extern __shared__ unsigned char memory[];
  const Shared90<Tile> shared{(shared_address(memory) + 1023) & ~1023u};
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  // This kernel may start before lists are written, values transposed, or keys copied out of their pages.
  if constexpr (User::traits.listed || come_transposed<Tile> || are_gathered<Tile>) wait_for_kernel_before();
  const int thread = static_cast<int>(threadIdx.x), group = uniform(thread / warpgroup_threads);
  if (group == 0) {
    registers_down<block_of<Tile>.loading>();
    using Producer = ForwardProducer90<Tile, User, values_have_warp<Tile> ? Loads::keys : Loads::all>;
    if (thread < 32 && Producer::loads()) Producer{args, shared, thread}.run();
    if constexpr (values_have_warp<Tile>)
      if (thread >= 64 && thread < 96) ForwardProducer90<Tile, User, Loads::values>{args, shared, thread - 64}.run();
    if (thread == 32) schedule_tiles<Tile>(args, user, shared);
    if constexpr (transposes_values<Tile>)
      if (thread >= 64) Group::transpose_v(args, shared);
    if constexpr (has_distances<Tile>)
      if (thread >= 64) FindDistances90<Tile, User>{{args, user, shared, uniform(thread / 32 - 2), thread % 32}}.run();
    if constexpr (has_columns<Tile>)
      if (thread >= 64) FindColumns90<Tile, User>{{args, user, shared, uniform(thread / 32 - 2), thread % 32}}.run();
  } else if (is_drawn<Tile> && group > Tile::m / 64) {
    if constexpr (is_drawn<Tile>) {
      registers_down<block_of<Tile>.helping>();
      const int warp = uniform(thread / 32) - (Tile::m / 16 + 4);
      DrawWords90<Tile, User>{{args, user, shared, warp, thread % 32}}.run();
    }
  } else {
    registers_up<block_of<Tile>.computing>();
    Consumer(args, user, shared, group - 1, thread % warpgroup_threads).run();
  }
}

template <ForwardTile Tile, class User>
__global__ void __launch_bounds__(block_of<Tile>.threads, blocks_of_sm<Tile>)
    forward_sm90(const __grid_constant__ ArgsOf<Tile, ForwardArgs> args, const __grid_constant__ User user) {
  using Group = Warpgroup90<Tile, User>;
  forward_block<Group, Tile, User,
                Either<two_walks<User>, ForwardTwoWalks90<Group, Tile, User>, ForwardConsumer90<Group, Tile, User>>>(
      args, user);
}

}  // namespace attune
