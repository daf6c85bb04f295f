// include/attune/ranks.h — one attention on many ranks: how they exchange data, who holds what, and what travels
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

/// How one rank exchanges bytes with the others: `threads`, `nccl`, or a process group of your program's.
struct Transport {
  int rank = 0, count = 1;
  struct Chunk {
    int peer = 0;
    void* data = nullptr;
    std::size_t bytes = 0;  ///< of all runs
    // On a device a chunk may be several runs of equal length: the rows of some heads.
    std::size_t runs = 1, stride = 0;  ///< stride: bytes from the beginning of a run to the beginning of the next
  };
  /// Sends and receives chunks, which keep their order between two ranks; the other rank names the same sizes and
  /// numbers of runs. Every rank calls it in the same order. Where `stream` is null, parts are in the memory of the
  /// host, and it returns once all have arrived. Else they are in that of the device that is current, and it is put on
  /// the stream: what the stream does after it finds the received parts, and may write to the sent ones.
  std::function<void(std::span<const Chunk> send, std::span<const Chunk> receive, void* stream)> exchange{};
  /// Adds up contiguous f32 or f64 over all ranks, in place, with the same bits on each. None: made of `exchange`.
  std::function<void(const Tensor& values, void* stream)> sum{};
  /// Called by a rank that fails: exchanges of the others throw soon, instead of waiting for it. May be none.
  std::function<void()> stop{};
};

/// Ranks as threads of this process: give one to each. A rank that waits for another longer than `seconds` throws the
/// Error `ranks-timeout`, and so does every exchange after that. On devices, which may be one or several of this host,
/// bytes are copied by copy engines and take no multiprocessor.
std::vector<Transport> threads(int count, double seconds = 60);

/// Ranks by NCCL, which is opened by name: one device for each, in one process or several, on one host or several. One
/// rank makes an id and hands it to all others by means of yours; then all call `nccl` at once. `device`: this rank's.
/// A rank that fails or does not come within `seconds` is the Error `ranks-timeout` on the others, and NCCL's own
/// Errors are `nccl`. Exchanges on a stream are watched: one that fails ends, what it should have received is then
/// undefined, and the next exchange throws. Captured into a graph they are not watched.
std::array<std::byte, 128> nccl_id(Line at = Line::here());
Transport nccl(const std::array<std::byte, 128>& id, int rank, int count, int device, double seconds = 60,
               Line at = Line::here());
/// By a communicator of yours, an ncclComm_t that outlives the transport; the NCCL that made it must be the one that
/// this process has loaded. It is never aborted here: after an Error its streams may wait until you do.
Transport nccl(void* communicator, int device, double seconds = 60, Line at = Line::here());

namespace detail {
struct Ranks;
}  // namespace detail

/// Who holds which positions of a sequence that is too long for one rank, what must travel for a mask, and in which
/// order: made once for many calls, alike on every rank. Passed to calls as Resources::sharding. By default it is
/// empty.
class Sharding {
 public:
  /// How blocks of positions are assigned to ranks. `best` is the one with the least predicted time. In calls with as
  /// many queries as keys at the same positions, a rank holds the queries and the keys of its positions; in others,
  /// queries are sharded and keys are contiguous.
  enum class Assignment : std::uint8_t {
    best,
    contiguous,  ///< one run of positions a rank
    zigzag,      ///< two runs, one from either end: even for a causal mask. Packed: of every sequence
    greedy,      ///< sixteen runs, the most work first, each to the rank with the least work that needs few more keys
  };
  /// What travels. `gather` and `heads` give the bits of one rank; `ring` and `decode` merge parts by their lse.
  enum class Travel : std::uint8_t {
    best,    ///< the fastest, but one that merges only where it is more than twice as fast
    gather,  ///< the keys that a rank's queries need, by groups of key heads
    ring,    ///< keys of one rank after the other: memory for two shares instead of all that is needed
    heads,   ///< q, k, v to ranks by heads and o back: all-to-all; ranks must divide the key heads
    decode,  ///< queries to all keys, and results back: for decoding
  };
  struct How {
    Assignment assignment = Assignment::best;
    Travel travel = Travel::best;
    int groups = 0;            ///< of key heads that travel together; 0: the best
    std::int64_t block = 384;  ///< positions are sharded in blocks of so many; a multiple of 96 that tiles divide
    // The machine that predictions are made for.
    int per_node = 8;                         ///< ranks that share a host
    double own_gb_s = 330, node_gb_s = 45;    ///< into each rank: from its own node, from other nodes
    double tflops = 660, memory_gb_s = 3350;  ///< of a rank's kernels
    double latency_us = 30;                   ///< of an exchange
  };
  struct Range {
    std::int64_t begin = 0, end = 0;
    bool operator==(const Range&) const = default;
  };

  Sharding() = default;
  /// For calls of these attentions; which one a call is of is seen by its mask. `whole`: the call as one rank would
  /// make it. Of its tensors the shapes and types count, and q, k, v may have no memory; only cu_seqlens and what masks
  /// capture is read, on the host. Ranks compare their plans by `with.exchange`, if there is one.
  Sharding(std::span<const Attention> layers, const Forward& whole, Transport with, Line at = Line::here());
  Sharding(std::span<const Attention> layers, const Forward& whole, Transport with, How how, Line at = Line::here());
  /// The same where each layer's call binds other captured tensors and parameters; sizes are those of the first call.
  Sharding(std::span<const Attention> layers, std::span<const Forward> wholes, Transport with, How how,
           Line at = Line::here());
  /// For calls of other masks on positions that were sharded already: the assignment, the transport and the choices of
  /// `sharded`. Lengths are the same; heads and types may be others.
  Sharding(const Sharding& sharded, std::span<const Attention> layers, std::span<const Forward> wholes,
           Line at = Line::here());

  explicit operator bool() const { return ranks_ != nullptr; }
  /// The queries that a rank holds, in the order of its tensors: of the row of all tokens where sequences are packed.
  std::span<const Range> of(int rank) const;
  /// The same of its keys.
  std::span<const Range> keys_of(int rank) const;
  /// at.q of each of its queries, for rotary embeddings.
  Array<int> positions(int rank) const;
  /// Bytes that a forward of that layer brings to the rank.
  std::size_t received(int rank, std::size_t layer = 0) const;
  /// Every assignment and schedule with its predicted time, and which was chosen.
  std::string explain() const;

  const detail::Ranks* get() const { return ranks_.get(); }

 private:
  std::shared_ptr<const detail::Ranks> ranks_;
};

}  // namespace attune
