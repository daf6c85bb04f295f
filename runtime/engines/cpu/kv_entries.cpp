// runtime/engines/cpu/kv_entries.cpp — the (batch entry, head) pairs of keys and values, and the queries that read each
#include "runtime/engines/cpu/kv_entries.h"

namespace attune::runtime::cpu {

std::vector<KVEntry> kv_entries(const compiler::Problem& problem, std::int32_t tile_kv, const Among& among) {
  std::vector<KVEntry> out;
  std::int64_t first_tile = 0;
  const compiler::Held* held = problem.held();
  const std::int64_t first = held ? held->first_head : 0, last = held ? held->last_head : problem.kv_heads;
  for (std::int64_t b = 0; b < (problem.kv_shared ? 1 : problem.batch); ++b)
    for (std::int64_t h = first; h < last; ++h) {
      // If the whole batch shares one entry of keys, it has the keys of the longest entry.
      const Sequence seq = problem.batch == 0 || (problem.kv_shared && !held) ? Sequence{.kv_len = problem.kv.length}
                                                                              : sequence(problem, b);
      if (!problem.kv_shared && !among.has(seq)) continue;
      const auto tiles = static_cast<std::int32_t>((seq.kv_len + tile_kv - 1) / tile_kv);
      out.push_back({b, h, seq.kv_start, seq.kv_len, tiles, first_tile});
      first_tile += tiles;
    }
  return out;
}

std::int64_t readers_per_entry(const compiler::Problem& problem) {
  return problem.group * (problem.kv_shared ? problem.batch : 1);
}

Reader reader_of(const compiler::Problem& problem, const KVEntry& entry, std::int64_t i) {
  return {problem.kv_shared ? i / problem.group : entry.b, entry.head * problem.group + i % problem.group};
}

}  // namespace attune::runtime::cpu
