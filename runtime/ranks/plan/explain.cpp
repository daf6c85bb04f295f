// runtime/ranks/plan/explain.cpp — a plan as text: every assignment and schedule with its predicted time
#include <algorithm>

#include <fmt/format.h>

#include "runtime/engines/picture/page.h"
#include "runtime/ranks/plan/plan.h"

namespace attune::runtime::ranks {

std::string Plan::explain() const {
  using runtime::grouped;
  std::string out = fmt::format("{} ranks, {} queries, {} keys, {}/{} heads of {}/{}, {}\n", count(), grouped(q.rows),
                                grouped(kv.rows), sizes.q_heads, sizes.kv_heads, sizes.d, sizes.dv, name_of(dtype));
  out += fmt::format("blocks of {}: {} of queries, {} of keys\n", how.block, q.blocks.size(), kv.blocks.size());
  out += "\nassignments       load   moved   predicted\n";
  for (const Candidate& c : candidates)
    out += fmt::format("  {:<12}{:>9.3f}{:>7.1f}%  {:>10}{}\n", name_of(c.assignment), c.load, 100 * c.gather,
                       milliseconds(c.ms), &c == &candidates.front() ? "   chosen" : "");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    out += layers.size() > 1 ? fmt::format("\nschedules of layer {}    predicted   of ideal   received\n", i)
                             : "\nschedules             predicted   of ideal   received\n";
    for (const Predicted& p : layers[i].schedules) {
      const std::string name = p.travel == Travel::gather
                                   ? fmt::format("gather, {} group{}", p.groups, p.groups > 1 ? "s" : "")
                                   : std::string(name_of(p.travel));
      if (!p.why_not.empty()) {
        out += fmt::format("  {:<20}not possible: {}\n", name, p.why_not);
        continue;
      }
      double most = 0;
      for (const RankTimes& r : p.ranks) most = std::max(most, r.received());
      const Predicted& chosen = layers[i].chosen();
      out += fmt::format("  {:<20}{:>11}{:>9.1f}%  {:>6.0f} MB{}\n", name, milliseconds(p.ms),
                         p.ms > 0 ? 100 * p.ideal / p.ms : 100, most / 1e6,
                         &p == &chosen      ? "   chosen"
                         : p.ms < chosen.ms ? "   faster, but its bits are not one rank's"
                                            : "");
    }
  }
  return out;
}

}  // namespace attune::runtime::ranks
