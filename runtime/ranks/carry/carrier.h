// runtime/ranks/carry/carrier.h — what schedules ask of the memory, the exchanges and the engine that a rank works with
#pragma once

#include <memory>
#include <vector>

#include "runtime/engines/engine.h"
#include "runtime/engines/workspace.h"
#include "runtime/ranks/schedule/rank.h"

namespace attune::runtime::ranks {

/// What one thing after another is put on. On the host each is done before the next is asked for.
enum class Lane : std::uint8_t {
  call,      ///< the caller's stream
  travel,    ///< exchanges
  own,       ///< copies of the rank's own keys, beside exchanges
  launches,  ///< all that parts of the call are put on: the caller's stream and others
};
/// Points that lanes can wait for; null, or none of them: passed already.
using Moments = std::vector<std::shared_ptr<const void>>;

/// Keys and values for one part of a call, and where in memory each position lies.
struct Keys {
  enum class Places : std::uint8_t {
    pieces,  ///< one piece after another
    whole,   ///< at its position, in memory as long as the whole call's
    owners,  ///< where its owner has it: all are this rank's
  };
  Wanted wanted{};
  Places places = Places::whole;
  std::vector<Piece> pieces{};  ///< what the rank gets of them
  Tensor k{}, v{};
  Moments used{};  ///< once these have passed, they may be overwritten
};

/// A slice of the call: q and results have the heads of the keys alone.
struct Slice {
  const Keys& keys;
  bool all_queries = false;          ///< else this rank's
  std::int64_t step = 0, steps = 1;  ///< which one of how many
};

/// Results over some of the keys, which others are merged into.
struct Partial {
  Tensor o, lse, max;
  bool sink = true;  ///< the sink has still to join
};
/// Results of this rank's queries by each rank, one after the other.
struct Partials {
  Tensor o, lse, max;  ///< the first rank's
  int count = 1;
};

/// Where gradients go that one launch cannot add to.
struct GradientSums {
  Tensor dk_launch{}, dv_launch{};  ///< of a further launch, to be added to the first one's; as the part's dk and dv
  std::vector<Tensor> captured{};   ///< f64: the sums of all launches
};

/// `to` becomes the sum of `parts` tensors of f32 or f64, which begin `stride` elements apart, or they are added to it.
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

  // ---- What it can do.

  /// The schedule that it has, of the planned one or another.
  virtual Travel takes(Travel planned) const = 0;
  /// How many groups of heads travel one after the other.
  virtual std::int64_t groups(std::int64_t planned) const { return planned; }
  virtual Keys::Places places() const = 0;
  /// Do keys of one group travel while another is computed?
  virtual bool is_ahead() const = 0;
  /// Values are the first columns of keys, and travel with them.
  virtual bool values_within_keys() const { return false; }
  /// Can its engine read these keys where their owner has them?
  virtual bool reads(const Rows& keys) const = 0;
  /// Can rows be sent from the tensor and received into it?
  virtual bool sends(const Rows&) const { return true; }
  /// The type of lse and max in partial results.
  virtual DType number() const = 0;
  /// How many launches a part over this rank's queries is.
  virtual std::size_t launches() const { return 1; }

  // ---- Memory.

  /// `groups`: memory begins with the keys of a gather in so many groups; 0: with something else.
  virtual std::byte* begin(const WorkspaceLayout& space, std::int64_t groups) = 0;
  /// Is memory for keys to be cleared first: may it hold others where this rank needs none?
  virtual bool clears() const { return false; }
  virtual void clear(void* first, std::size_t bytes, Lane lane) = 0;
  /// Every element, whatever the strides.
  virtual void copy(const Tensor& from, const Tensor& to) = 0;
  virtual void copy(const Chunk& from, const Chunk& to, Lane lane) = 0;

  // ---- Exchanges, and the order of lanes.

  virtual void exchange(const Exchange& of) = 0;
  /// Adds up f64 over all ranks in their order. False: the transport does not add in this memory.
  virtual bool sum_over_ranks(const Tensor&) { return false; }
  /// The end of all that the lane has been given.
  virtual Moments mark(Lane) const { return {}; }
  /// What the lane is given from now on runs after these.
  virtual void wait(Lane, const Moments&) const {}
  /// The call is on its lanes; all that it was given last is on the caller's.
  virtual void ended() {}
  /// Lets all lanes wait for what the caller's stream has been given.
  void start() const;
  /// The caller's stream waits for all lanes, or for all but launches.
  void join();
  void join_travel();

  // ---- Computation.

  virtual void run(const Forward& part, const Slice& of) = 0;
  /// Attends to further keys, whose results are merged into `into`.
  virtual void attend(const Forward& part, const Slice& of, Partial& into) = 0;
  virtual void run(const Backward& part, const Slice& of, const GradientSums& sums) = 0;
  virtual void add(const Sum& of, const Tensor& to) = 0;
  /// Results without a key.
  virtual void clear(const Partial& of) = 0;
  /// Merges results in the order of ranks.
  virtual void merge(const Partials& of, const Forward& into) = 0;

  /// Tells the caller which kernel was used, by which schedule.
  void report(std::string_view schedule) const;

 protected:
  void remember(const Used& used);

  const Rank& rank_;
  const Means& means_;

 private:
  Used used_;  ///< by the last part
};

/// Where a piece of keys lies.
Rect place_of(const Rank& rank, const Keys& keys, const Piece& piece);

}  // namespace attune::runtime::ranks
