// runtime/ranks/plan/rank.h — what a rank's part of a call is on any engine: its queries, and the keys that ranks need
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include <attune/error.h>

#include "runtime/engines/call.h"
#include "runtime/machine/as_size.h"
#include "runtime/ranks/plan/plan.h"
#include "runtime/ranks/plan/rows.h"
#include "runtime/ranks/transport/transport.h"

namespace attune::runtime::ranks {

/// The layer of the plan that a call is of. Masks are told apart by what they capture too, where that is on the host.
const Layer& layer_of(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const compiler::Args& args);

/// Throws the Error `shares-other`.
Error other(std::string problem, std::string why);

/// Neighbouring grains of keys of one owner, for one (entry, head), as a rank gets them.
struct Piece {
  int owner;
  std::int64_t entry, head;
  std::size_t first, last;  ///< grains
  std::int64_t rows = 0;
  std::int64_t at = 0;  ///< row in the buffer of the rank that gets them
};

/// What both directions do on one rank.
class Rank {
 public:
  Rank(const detail::Ranks& plan, const Call& of)
      : plan_(plan), of_(of), lowered_(of.mod), problem_(of.problem), me_(plan.transport.rank),
        layer_(layer_of(plan, of.mod, of.args)), kv_local_(local_rows(plan.kv, plan.dealt().kv)),
        q_local_(local_rows(plan.q, plan.dealt().q)) {
    if (plan.count() > 1 && !plan.transport.exchange)
      throw Error("shares-call", "these Shares are for planning", {}, "their transport exchanges nothing",
                  "make them with a transport: attune::threads, or one of your own");
  }

 protected:
  int count() const { return plan_.count(); }
  bool packed() const { return problem_.q.packed(); }
  std::int64_t key_entries() const { return packed() || problem_.kv_shared ? 1 : problem_.batch; }

  /// What a rank needs of some owners' keys, of heads [first, last), in the order of positions.
  template <class Of>
  std::vector<Piece> pieces(int rank, std::int64_t first, std::int64_t last, const Of& of) const {
    std::vector<Piece> out;
    const std::vector<int>& owners = plan_.dealt().kv;
    std::int64_t at = 0;
    for (std::int64_t e = 0; e < key_entries(); ++e)
      for (std::int64_t h = first; h < last; ++h)
        for (std::size_t g = 0; g < owners.size();) {
          if (!of(e, h, rank, g)) {
            ++g;
            continue;
          }
          Piece piece{.owner = owners[g], .entry = e, .head = h, .first = g, .last = g, .at = at};
          for (; g < owners.size() && owners[g] == piece.owner && of(e, h, rank, g); ++g)
            piece.rows += plan_.kv.grains[g].rows();
          piece.last = g;
          at += piece.rows;
          out.push_back(piece);
        }
    return out;
  }
  /// The pieces of a gather.
  auto needed() const {
    return
        [this](std::int64_t e, std::int64_t h, int rank, std::size_t g) { return layer_.needs->of(e, h, rank).has(g); };
  }

  /// This rank's queries.
  std::vector<std::vector<compiler::Held::Rows>> own_queries() const {
    std::vector<std::vector<compiler::Held::Rows>> out(as_size(packed() ? problem_.batch : 1));
    for (std::size_t g = 0; g < plan_.q.grains.size(); ++g) {
      if (plan_.dealt().q[g] != me_) continue;
      const Grain& grain = plan_.q.grains[g];
      auto& into = out[as_size(grain.entry)];
      if (!into.empty() && into.back().last == grain.first)
        into.back().last = grain.last;
      else
        into.push_back({grain.first, grain.last, q_local_[g]});
    }
    return out;
  }
  /// All queries, in the order of the whole call.
  std::vector<std::vector<compiler::Held::Rows>> all_queries() const {
    std::vector<std::vector<compiler::Held::Rows>> out(as_size(packed() ? problem_.batch : 1));
    for (const Grain& grain : plan_.q.grains) {
      auto& into = out[as_size(grain.entry)];
      if (into.empty())
        into.push_back({grain.first, grain.last, grain.row});
      else
        into.back().last = grain.last;
    }
    return out;
  }

  /// Ranks compare what they are about to do, once for each kind of call.
  void agree(const ir::Digest& digest) const {
    {
      const std::lock_guard lock(plan_.agreed_mutex);
      if (plan_.agreed.contains(digest)) return;
    }
    compare(plan_.transport, digest, "this call", nullptr);
    const std::lock_guard lock(plan_.agreed_mutex);
    plan_.agreed.insert(digest);
  }

  const detail::Ranks& plan_;
  const Call& of_;
  const compiler::LoweredMod& lowered_;
  const compiler::Problem& problem_;
  int me_;
  const Layer& layer_;
  std::vector<std::int64_t> kv_local_, q_local_;
};

}  // namespace attune::runtime::ranks
