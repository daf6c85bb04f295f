// codegen/cuda/parts/ring_sm90.cuh — tiles in shared memory, and rings of their stages with full and empty barriers;
// names for the hardware's barriers
//
// A producer acquires a stage, fills it and arrives at `full`. Consumers wait for `full`, read the stage, and release
// it. The producer and each consumer keep their own Place.
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/types.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// Named barriers of a block. Barrier 0 belongs to __syncthreads. Ids of one kernel are consecutive; `+ warpgroup`
/// means one barrier per warpgroup.
enum NamedBarrier : int {
  // forward_sm90.cuh
  issue_turn = 1,    ///< + warpgroup: the warpgroup before has issued its products
  queries_read = 8,  ///< + warpgroup: all four warps are done with their queries
  // backward_sm90.cuh
  ds_shared = 1,       ///< both warpgroups' dS is in shared memory, or no longer read there
  results_staged = 2,  ///< + warpgroup: its four warps are done with the memory that results pass through
  scores_issued = 4,   ///< the first warpgroup has issued S and dP
  dq_issued = 5,       ///< the first warpgroup has issued dQ and dK
  // keys_sm90.cuh, queries_sm90.cuh
  first_warpgroup_done = 1,   ///< its four warps are done with the operands that results pass over
  second_warpgroup_done = 2,  ///< the same for the second warpgroup
  // mla_sm90.cuh
  all_groups = 1,
  scores_done = 2,        ///< + warpgroup: its scores have arrived
  probabilities = 4,      ///< + warpgroup: its probabilities are in shared memory
  warpgroup_cleared = 6,  ///< + warpgroup: its four warps have cleared rows past the last key
};

/// Tells the compiler that a number is the same in all lanes.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

/// Arrives once for a warp, after all of its lanes.
__device__ inline void arrive_as_warp(unsigned barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}

/// The address of a tile in shared memory: its rows in chunks of 128 bytes, swizzled as TMA and wgmma do. Stages of a
/// tile lie one after another.
template <int rows, int columns, class Element>
struct SharedTile {
  static constexpr int chunk = chunk_columns<Element>, chunks = (columns + chunk - 1) / chunk,
                       chunk_size = rows * chunk_bytes, bytes = chunks * chunk_size;
  unsigned at;

  __device__ operator unsigned() const { return at; }
  __device__ SharedTile operator[](int stage) const { return {at + stage * bytes}; }
  /// The same tile from this row on.
  __device__ SharedTile from(int row) const { return {at + row * chunk_bytes}; }
};

/// The two barriers of a stage, 8 bytes each: full, then empty. `phase` is the parity of the consumer's and producer's
/// current use of the stage.
struct StageBarriers {
  static constexpr int bytes = 16;
  unsigned full;

  __device__ StageBarriers operator[](int stage) const { return {full + bytes * stage}; }
  __device__ unsigned empty() const { return full + 8; }
  __device__ void init(unsigned producers, unsigned consumers) const {
    barrier_init(full, producers);
    barrier_init(empty(), consumers);
  }
  /// Waits until the stage is full.
  __device__ void wait(unsigned phase) const { barrier_wait(full, phase); }
  /// Waits until the stage is empty.
  __device__ void acquire(unsigned phase) const { barrier_wait(empty(), phase ^ 1); }
};

/// A position in a ring of stages, and the parity of its current phase.
template <int Stages>
struct Place {
  int stage = 0;
  unsigned phase = 0;
  __device__ void next() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ Place before() const { return stage ? Place{stage - 1, phase} : Place{Stages - 1, phase ^ 1}; }
};

/// A place, and the barriers of the ring's stages, which lie one after another from `barriers` on.
template <int Stages>
struct Ring : Place<Stages> {
  unsigned barriers;

  __device__ explicit Ring(unsigned barriers, Place<Stages> at = {}) : Place<Stages>(at), barriers(barriers) {}
  __device__ StageBarriers now() const { return {barriers + StageBarriers::bytes * this->stage}; }
  __device__ unsigned full() const { return now().full; }
  __device__ unsigned empty() const { return now().empty(); }

  // Called by a producer.
  __device__ void acquire() const { now().acquire(this->phase); }

  // Called by a consumer.
  __device__ void wait() const { now().wait(this->phase); }
  /// One warp of a consumer has read the stage.
  __device__ void release(int lane) const {
    if (lane == 0) barrier_arrive(empty());
  }
  /// Waits until all consumers have released the stage. This consumer has, and uses it for something else.
  __device__ void wait_until_read() const { barrier_wait(empty(), this->phase); }
  /// The same as release, after all lanes.
  __device__ void release_as_warp(int lane) const { arrive_as_warp(empty(), lane); }

  __device__ static void init(unsigned barriers, unsigned producers, unsigned consumers) {
    for (int i = 0; i < Stages; ++i) StageBarriers{barriers + StageBarriers::bytes * i}.init(producers, consumers);
  }
};

}  // namespace attune
