// runtime/ranks/plan/plan.h — the plan of a Sharding: who holds what, and for each mask what travels by which schedule
#pragma once

#include <functional>
#include <optional>

#include <attune/attention.h>

#include "runtime/ranks/plan/mask.h"
#include "runtime/ranks/plan/predict.h"

namespace attune::runtime::ranks {

/// One assignment of blocks to ranks.
struct Candidate {
  Assignment assignment = Assignment::best;
  Owners owners;
  double load = 0;    ///< the largest share of work, by the mean
  double gather = 0;  ///< the mean share of other ranks' keys that a rank needs
  double ms = 0;      ///< of all layers, each by its best schedule
};

/// Of one layer, by the chosen assignment.
struct Layer {
  MaskOf mask;
  Work work;
  std::vector<Predicted> schedules;  ///< all that were considered, the chosen first
  std::optional<Needs> needs;

  const Predicted& chosen() const { return schedules.front(); }
};

/// Which rank plans, of how many.
struct Place {
  int rank = 0, count = 1;
};

struct Plan {
  /// `wholes`: a call for each attention. `before`: whose assignment is kept, or null. `tasks`: what works out masks.
  Plan(std::span<const Attention> attentions, std::span<const Forward> wholes, const Place& place,
       const Sharding::How& asked, const Plan* before, const Tasks& tasks);

  How how;
  compiler::Problem problem;  ///< of the whole call
  Place place;
  Sizes sizes;
  DType dtype = DType::bf16;
  Axis q, kv;
  bool together = false;              ///< a rank holds the queries and the keys of its positions
  std::vector<Candidate> candidates;  ///< the chosen first
  std::vector<Layer> layers;
  std::vector<std::vector<Sharding::Range>> q_of, kv_of;  ///< by rank
  ir::Digest digest;                                      ///< of all that ranks must agree on

  int count() const { return place.count; }
  const Owners& owners() const { return candidates.front().owners; }
  std::int64_t q_rows(int rank) const;
  std::int64_t kv_rows(int rank) const;
  /// Bytes that a forward of a layer brings to the rank.
  double received(int rank, std::size_t layer) const;
  std::string explain() const;

 private:
  /// An assignment, and by layer all schedules.
  struct Considered {
    Candidate candidate;
    std::vector<std::vector<Predicted>> schedules;
  };
  /// A layer's work, and whether parts of its results can be merged.
  struct Asked {
    std::vector<Work> work;
    std::vector<bool> linear;
  };
  Considered consider(Assignment assignment, std::vector<int> q_owners, const Asked& asked) const;
  Considered best_greedy(const Asked& asked) const;
  void choose(const Asked& asked, const Plan* before);
  /// All schedules, the best first. `linear`: parts can be merged.
  std::vector<Predicted> schedules(const Work& work, const Owners& owners, bool linear) const;
  double share_of_gather(const Work& work, const Owners& owners) const;
  ir::Digest digest_of_plan() const;
};

}  // namespace attune::runtime::ranks
