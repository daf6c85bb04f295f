// runtime/ranks/plan/plan.h — the plan of a Sharding: which rank holds which positions, and the schedule of each mask
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <attune/attention.h>

#include "runtime/ranks/plan/digest.h"
#include "runtime/ranks/plan/predict.h"

namespace attune::runtime::ranks {

/// One assignment of blocks to ranks.
struct Candidate {
  Assignment assignment = Assignment::best;
  Owners owners;
  double load = 0;    ///< largest share of work / mean share
  double gather = 0;  ///< mean fraction of other ranks' keys that a rank needs
  double ms = 0;      ///< predicted time of all layers, each by its best schedule
};

/// One layer, under the chosen assignment.
struct Layer {
  MaskOf mask;
  Work work;
  std::vector<Predicted> schedules;  ///< all considered schedules, the chosen one first
  std::optional<Needs> needs;

  const Predicted& chosen() const { return schedules.front(); }
};

/// The rank that plans, and the number of ranks.
struct Place {
  int rank = 0, count = 1;
};

struct Plan {
  /// `wholes`: a call for each attention. `before`: a plan whose assignment is kept, or null. `tasks`: runs the
  /// evaluation of masks.
  Plan(std::span<const Attention> attentions, std::span<const Forward> wholes, const Place& place,
       const Sharding::How& asked, const Plan* before, const Tasks& tasks);

  How how;
  compiler::Problem problem;  ///< of the whole call
  Place place;
  Sizes sizes;
  DType dtype = DType::bf16;
  Axis q, kv;
  bool together = false;              ///< true if a rank holds the queries and the keys of its positions
  std::vector<Candidate> candidates;  ///< the chosen one first
  std::vector<Layer> layers;
  std::vector<std::vector<Sharding::Range>> q_of, kv_of;  ///< by rank
  ir::Digest digest;                                      ///< digest of everything that ranks must agree on

  int count() const { return place.count; }
  const Owners& owners() const { return candidates.front().owners; }
  std::int64_t q_rows(int rank) const;
  std::int64_t kv_rows(int rank) const;
  /// Bytes that the rank receives in a forward of a layer.
  double received(int rank, std::size_t layer) const;
  std::string explain() const;

 private:
  /// An assignment, and all schedules by layer.
  struct Considered {
    Candidate candidate;
    std::vector<std::vector<Predicted>> schedules;
  };
  /// A layer's work; `linear` is true if partial results can be merged.
  struct Asked {
    std::vector<Work> work;
    std::vector<bool> linear;
  };
  Considered consider(Assignment assignment, std::vector<int> q_owners, const Asked& asked) const;
  Considered best_greedy(const Asked& asked) const;
  void choose(const Asked& asked, const Plan* before);
  /// All schedules, the best first. `linear`: true if partial results can be merged.
  std::vector<Predicted> schedules(const Work& work, const Owners& owners, bool linear) const;
  double share_of_gather(const Work& work, const Owners& owners) const;
  ir::Digest digest_of_plan() const;
};

/// Draws the chosen schedule of a layer. `title`: the mask, in one line.
std::string picture(const Plan& ranks, std::size_t layer, std::string_view title);

}  // namespace attune::runtime::ranks
