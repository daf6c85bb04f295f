// runtime/ranks/plan/plan.h — the plan of Shares: who holds what, and for each mask what travels by which schedule
#pragma once

#include <mutex>
#include <set>

#include <attune/attention.h>

#include "runtime/ranks/plan/predict.h"

namespace attune::runtime::ranks {

class DeviceRoom;

/// What makes two calls' masks the same: the mask, its parameters and the contents of what it captures.
struct MaskOf {
  ir::Digest mask, data;
  bool operator==(const MaskOf&) const = default;
};
/// Reads what the mask captures, on the host.
MaskOf mask_of(const compiler::LoweredMod& lowered, const compiler::Args& args);

/// What a call says that only one rank computes; empty: nothing.
std::string_view not_over_ranks(const Forward& call);

/// One way to deal.
struct Candidate {
  Deal deal = Deal::best;
  Dealt dealt;
  double load = 0;    ///< the largest share of work, by the mean
  double gather = 0;  ///< the mean share of other ranks' keys that a rank needs
  double ms = 0;      ///< of all layers, each by its best schedule
};

/// Of one layer, by the chosen deal.
struct Layer {
  MaskOf mask;
  Work work;
  std::vector<Predicted> schedules;  ///< all that were considered, the chosen first
  std::optional<Needs> needs;

  const Predicted& chosen() const { return schedules.front(); }
};

}  // namespace attune::runtime::ranks

namespace attune::detail {

struct Ranks {
  /// `wholes`: a call for each attention. `before`: whose deal is kept, or null.
  Ranks(std::span<const Attention> attentions, std::span<const Forward> wholes, Transport with,
        const Shares::How& asked, const Ranks* before);

  Transport transport;
  Shares::How how;
  compiler::Problem problem;  ///< of the whole call
  runtime::ranks::Sizes sizes;
  DType dtype = DType::bf16;
  runtime::ranks::Axis q, kv;
  bool together = false;                              ///< a rank holds the queries and the keys of its positions
  std::vector<runtime::ranks::Candidate> candidates;  ///< the chosen first
  std::vector<runtime::ranks::Layer> layers;
  std::vector<std::vector<Shares::Stretch>> q_of, kv_of;  ///< by rank
  ir::Digest digest;                                      ///< of all that ranks must agree on

  int count() const { return transport.count; }
  const runtime::ranks::Dealt& dealt() const { return candidates.front().dealt; }
  std::int64_t q_rows(int rank) const;
  std::int64_t kv_rows(int rank) const;
  /// Bytes that a forward of a layer brings to the rank.
  double received(int rank, std::size_t layer) const;
  std::string explain() const;

  /// The digests of calls on which the ranks agreed before.
  mutable std::mutex agreed_mutex;
  mutable std::set<ir::Digest> agreed;
  /// What calls on a device keep between them; null before the first one.
  mutable std::mutex room_mutex;
  mutable std::shared_ptr<runtime::ranks::DeviceRoom> room;

 private:
  /// A deal, and by layer all schedules.
  struct Considered {
    runtime::ranks::Candidate candidate;
    std::vector<std::vector<runtime::ranks::Predicted>> schedules;
  };
  Considered consider(Shares::Deal deal, std::vector<int> q_owners, std::span<const runtime::ranks::Work> work,
                      const std::vector<bool>& linear) const;
  void choose(std::span<const runtime::ranks::Work> work, const std::vector<bool>& linear, const Ranks* before);
  /// All schedules, the best first. `linear`: parts can be merged.
  std::vector<runtime::ranks::Predicted> schedules(const runtime::ranks::Work& work, const runtime::ranks::Dealt& dealt,
                                                   bool linear) const;
  double share_of_gather(const runtime::ranks::Work& work, const runtime::ranks::Dealt& dealt) const;
  ir::Digest digest_of_plan() const;
};

}  // namespace attune::detail
