// runtime/ranks/carry/carrier.h — the interface between schedules and a rank's memory, exchanges and engine
#pragma once

#include <memory>
#include <vector>

#include "runtime/engines/engine.h"
#include "runtime/engines/workspace.h"
#include "runtime/ranks/schedule/rank.h"

namespace attune::runtime::ranks {

/// Work on one lane runs in order, as on a CUDA stream. On the host each task is done before the next begins.
enum class Lane : std::uint8_t {
  call,      ///< the caller's stream
  travel,    ///< exchanges
  own,       ///< copies of the rank's own keys, concurrent with exchanges
  launches,  ///< all streams that compute parts of the call: the caller's and others
};
/// Points that lanes can wait for. A null moment, or an empty list, has passed already.
using Moments = std::vector<std::shared_ptr<const void>>;

/// Keys and values for one part of a call, and the place of each position in memory.
struct Keys {
  enum class Places : std::uint8_t {
    consecutive,  ///< one range after another
    whole,        ///< at its position, in memory with room for all keys of the call
    owners,       ///< in its owner's tensor: all keys are this rank's
  };
  Wanted wanted{};
  Places places = Places::whole;
  std::vector<KeyRange> ranges{};  ///< the ranges that the rank receives
  Tensor k{}, v{};
  Moments used{};  ///< once these have passed, k and v may be overwritten
};

/// A slice of the call: q and results have only the heads that belong to the slice's key heads.
struct Slice {
  const Keys& keys;
  bool all_queries = false;          ///< true: the queries of all ranks; false: only this rank's
  std::int64_t step = 0, steps = 1;  ///< the number of this slice, and the number of slices
};

/// Results over some of the keys. Results over further keys are merged into them.
struct Partial {
  Tensor o, lse, max;
  bool sink = true;  ///< true while the sink has not been added
};
/// Results of this rank's queries, one from each rank, in the order of ranks.
struct Partials {
  Tensor o, lse, max;  ///< of the first rank
  int count = 1;
};

/// Memory for gradients that several launches or ranks contribute to.
struct GradientSums {
  Tensor dk_launch{}, dv_launch{};  ///< shaped like the part's dk and dv: the gradients of a later launch, which are
                                    ///< then added to those of the first
  std::vector<Tensor> captured{};   ///< f64: the sums of all launches
};

/// to = sum of `parts` tensors of f32 or f64, which begin `stride` elements apart; or to += that sum.
struct Sum {
  Tensor first;
  int parts = 1;
  std::int64_t stride = 0;
  bool adds = false;
};

class Carrier {
 public:
  Carrier(const Rank& rank, const Means& means) : rank_(rank), means_(means) {}
  virtual ~Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  // ---- Capabilities.

  /// The schedule that the carrier uses: the planned one if it supports it, else another.
  virtual Travel takes(Travel planned) const = 0;
  /// The number of groups of heads that travel one after another.
  virtual std::int64_t groups(std::int64_t planned) const { return planned; }
  virtual Keys::Places places() const = 0;
  /// True if the keys of one group travel while another group is computed.
  virtual bool is_ahead() const = 0;
  /// True if values are the first columns of keys, and so travel with them.
  virtual bool values_within_keys() const { return false; }
  /// True if the engine can read these keys in their owner's tensors, without a copy.
  virtual bool reads(const Rows& keys) const = 0;
  /// True if rows can be sent from this tensor and received into it.
  virtual bool sends(const Rows&) const { return true; }
  /// The type of lse and max in partial results.
  virtual DType number() const = 0;
  /// The number of launches of a part over this rank's queries.
  virtual std::size_t launches() const { return 1; }

  // ---- Memory.

  /// `groups`: if not 0, memory begins with the keys of a gather in this number of groups.
  virtual std::byte* begin(const WorkspaceLayout& space, std::int64_t groups) = 0;
  /// True if memory for keys must be cleared first: it may hold old keys at positions that this rank does not need.
  virtual bool clears() const { return false; }
  virtual void clear(void* first, std::size_t bytes, Lane lane) = 0;
  /// Copies every element, with any strides.
  virtual void copy(const Tensor& from, const Tensor& to) = 0;
  virtual void copy(const Chunk& from, const Chunk& to, Lane lane) = 0;

  // ---- Exchanges, and the order of lanes.

  virtual void exchange(const Exchange& of) = 0;
  /// Adds up f64 over all ranks in their order. False: the transport does not add in this memory.
  virtual bool sum_over_ranks(const Tensor&) { return false; }
  /// The end of all work that is on the lane now.
  virtual Moments mark(Lane) const { return {}; }
  /// Later work of the lane runs after these moments.
  virtual void wait(Lane, const Moments&) const {}
  /// Called when the whole call is on its lanes; the caller's stream waits for all of it.
  virtual void ended() {}
  /// Makes all lanes wait for the work that is on the caller's stream now.
  void start() const;
  /// Makes the caller's stream wait for all lanes, or for all but `launches`.
  void join();
  void join_travel();

  // ---- Computation.

  virtual void run(const Forward& part, const Slice& of) = 0;
  /// Attends to further keys, and merges the results into `into`.
  virtual void attend(const Forward& part, const Slice& of, Partial& into) = 0;
  virtual void run(const Backward& part, const Slice& of, const GradientSums& sums) = 0;
  virtual void add(const Sum& of, const Tensor& to) = 0;
  /// Results over no keys.
  virtual void clear(const Partial& of) = 0;
  /// Merges results in the order of ranks.
  virtual void merge(const Partials& of, const Forward& into) = 0;

  /// Reports to the caller which kernel was used, and by which schedule.
  void report(std::string_view schedule) const;

 protected:
  void remember(const Used& used);

  const Rank& rank_;
  const Means& means_;

 private:
  Used used_;  ///< what the last part used
};

/// The place of a range of keys in `keys`.
Rect place_of(const Rank& rank, const Keys& keys, const KeyRange& range);

}  // namespace attune::runtime::ranks
