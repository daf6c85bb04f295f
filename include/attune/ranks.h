// include/attune/ranks.h — one attention on many ranks: transports, and which rank holds and sends what
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <attune/tensor.h>

namespace attune {

struct Attention;
struct Forward;

/// How one rank exchanges bytes with the others: `threads`, `nccl`, or your program's own process group.
struct Transport {
  int rank = 0, count = 1;
  struct Chunk {
    int peer = 0;
    void* data = nullptr;
    std::size_t bytes = 0;  ///< of all runs
    // On a device a chunk may consist of several runs of equal length: the rows of some heads.
    std::size_t runs = 1, stride = 0;  ///< stride: bytes from the beginning of a run to the beginning of the next
  };
  /// Sends and receives chunks, whose order between two ranks is kept; the other rank passes the same sizes and numbers
  /// of runs. Every rank makes the same exchanges in the same order. If `stream` is null, chunks are in host memory,
  /// and `exchange` returns once all have arrived. Otherwise chunks are in the memory of the current device, and
  /// `exchange` is enqueued on the stream: later work of the stream finds the received chunks complete and may
  /// overwrite the sent ones.
  std::function<void(std::span<const Chunk> send, std::span<const Chunk> receive, void* stream)> exchange{};
  /// Adds up contiguous f32 or f64 over all ranks, in place, with the same bits on each rank. If empty, attune uses
  /// `exchange`.
  std::function<void(const Tensor& values, void* stream)> sum{};
  /// Called by a rank that fails: exchanges of the other ranks then throw soon instead of waiting for this rank. May be
  /// empty.
  std::function<void()> stop{};
};

/// Ranks as threads of this process: give one transport to each thread. A rank that waits for another longer than
/// `seconds` throws the Error `ranks-timeout`, and so does every later exchange. Ranks on GPUs may share one GPU of
/// this host or use several; copy engines then copy the bytes and no SM is used.
std::vector<Transport> threads(int count, double seconds = 60);

/// Ranks that communicate by NCCL, whose library is opened by name: one device for each rank, in one process or
/// several, on one host or several. One rank makes an id and sends it to all others by your own means; then all ranks
/// call `nccl` at the same time. `device`: this rank's device. If a rank fails or does not arrive within `seconds`, the
/// others throw the Error `ranks-timeout`; failures of NCCL itself are the Error `nccl`. Exchanges on a stream are
/// watched: if one fails, it is aborted, the data that it should have received is undefined, and the next exchange
/// throws. Exchanges that a graph has captured are not watched.
std::array<std::byte, 128> nccl_id(Line at = Line::here());
Transport nccl(const std::array<std::byte, 128>& id, int rank, int count, int device, double seconds = 60,
               Line at = Line::here());
/// Uses your communicator, an ncclComm_t that must outlive the transport; the NCCL library that made it must be the one
/// that this process has loaded. attune never aborts your communicator: after an Error its streams may wait until you
/// abort it.
Transport nccl(void* communicator, int device, double seconds = 60, Line at = Line::here());

namespace detail {
struct Ranks;
}  // namespace detail

/// Which rank holds which positions of a sequence that is too long for one rank, which data a mask requires ranks to
/// exchange, and in which order. Made once for many calls, and equal on every rank. Passed to calls as
/// Resources::sharding. By default it is empty.
class Sharding {
 public:
  /// How blocks of positions are assigned to ranks. `best` is the assignment with the least predicted time. If a call
  /// has its queries and its keys at the same positions, a rank holds the queries and the keys of its positions;
  /// otherwise queries are sharded by the assignment and keys are contiguous.
  enum class Assignment : std::uint8_t {
    best,
    contiguous,  ///< one run of positions per rank
    zigzag,      ///< two runs per rank, one from either end: balanced for a causal mask. Packed: of every sequence
    greedy,      ///< sixteen runs per rank: the run with the most work first, to the rank with the least work that then
                 ///< needs few more keys
  };
  /// What ranks exchange. `gather` and `heads` give the same bits as one rank; `ring` and `decode` merge partial
  /// results by their lse.
  enum class Travel : std::uint8_t {
    best,    ///< the fastest; `ring` and `decode` only if they are more than twice as fast
    gather,  ///< the keys that a rank's queries need, one group of key heads at a time
    ring,    ///< the keys of one rank after another: needs memory for the keys of two ranks instead of all needed keys
    heads,   ///< all-to-all: q, k, v are redistributed by heads, and o back; the number of ranks must divide the key
             ///< heads
    decode,  ///< queries go to the ranks that hold the keys, and results come back: for decode
  };
  struct How {
    Assignment assignment = Assignment::best;
    Travel travel = Travel::best;
    int groups = 0;            ///< number of groups of key heads; the heads of a group travel together; 0: the fastest
    std::int64_t block = 384;  ///< positions per block that is sharded; a multiple of 96 that tile sizes divide
    // The machine that predictions are made for.
    int per_node = 8;                         ///< ranks that share a host
    double own_gb_s = 330, node_gb_s = 45;    ///< GB/s into each rank: from its own node, from other nodes
    double tflops = 660, memory_gb_s = 3350;  ///< TFLOP/s and GB/s of a rank's kernels
    double latency_us = 30;                   ///< latency of an exchange
  };
  struct Range {
    std::int64_t begin = 0, end = 0;
    bool operator==(const Range&) const = default;
  };

  Sharding() = default;
  /// For calls of these attentions; a call's mask identifies its attention. `whole`: the call as one rank would make
  /// it. Only the shapes and types of its tensors matter, and q, k, v may have no memory; only cu_seqlens and the
  /// tensors that masks capture are read, on the host. Ranks compare their plans through `with.exchange`, if it is set.
  Sharding(std::span<const Attention> layers, const Forward& whole, Transport with, Line at = Line::here());
  Sharding(std::span<const Attention> layers, const Forward& whole, Transport with, How how, Line at = Line::here());
  /// The same for layers whose calls bind different captured tensors and parameters; sizes are taken from the first
  /// call.
  Sharding(std::span<const Attention> layers, std::span<const Forward> wholes, Transport with, How how,
           Line at = Line::here());
  /// For calls with other masks on positions that `sharded` has already assigned: keeps the assignment, the transport
  /// and the choices of `sharded`. Lengths must be the same; heads and types may differ.
  Sharding(const Sharding& sharded, std::span<const Attention> layers, std::span<const Forward> wholes,
           Line at = Line::here());

  explicit operator bool() const { return ranks_ != nullptr; }
  /// The queries that a rank holds, in the order of its tensors. If sequences are packed, positions are positions in
  /// the packed row of all tokens.
  std::span<const Range> of(int rank) const;
  /// The same for the rank's keys.
  std::span<const Range> keys_of(int rank) const;
  /// at.q of each of the rank's queries, for rotary embeddings.
  Array<int> positions(int rank) const;
  /// Bytes that the rank receives in a forward of that layer.
  std::size_t received(int rank, std::size_t layer = 0) const;
  /// Every assignment and schedule with its predicted time, and which was chosen.
  std::string explain() const;

  const detail::Ranks* get() const { return ranks_.get(); }

 private:
  std::shared_ptr<const detail::Ranks> ranks_;
};

}  // namespace attune
