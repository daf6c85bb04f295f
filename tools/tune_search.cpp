// tools/tune_search.cpp — searches many variants for the fastest, measuring each next to the usual one
#include <algorithm>
#include <set>

#include "tools/tune.h"

namespace attune::tools {

std::vector<Trial> search(const codegen::Variant& usual, const Grounds& grounds) {
  constexpr std::size_t starts = 3;
  constexpr double gain = 1.01;
  std::vector<Trial> all;
  std::set<codegen::Variant> known;
  // Returns the best of those that were not measured before.
  const auto measure = [&](const std::vector<codegen::Variant>& variants) {
    Trial best;
    for (const codegen::Variant& variant : variants) {
      if (!known.insert(variant).second) continue;
      all.push_back(grounds.measure(variant));
      if (all.back().speed > best.speed) best = all.back();
    }
    return best;
  };
  const auto fastest_first = [&] { std::ranges::stable_sort(all, std::greater{}, &Trial::speed); };
  measure({usual});
  measure(grounds.tiles(usual));
  fastest_first();
  std::vector<Trial> from(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(starts, all.size())));
  for (Trial& here : from)
    while (here.speed > 0) {
      const Trial next = measure(grounds.ways(here.variant));
      if (next.speed < here.speed * gain) break;
      here = next;
    }
  fastest_first();
  return all;
}

}  // namespace attune::tools
