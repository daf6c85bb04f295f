// tools/measure/bench_cases.cpp — the attentions that attune bench measures, and their data
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/choose/choose.h"
#include "compiler/lower.h"
#include "runtime/engines/cover/tiles.h"
#include "runtime/machine/tensor.h"
#include "tools/measure/bench.h"

namespace attune::tools {
namespace {

/// A known attention that people run.
struct Row {
  std::string name, score, mask, meaning;
};
const std::array<Row, 8> known_rows{{
    {"full", "s", "true", "nothing but softmax(q k) v"},
    {"causal", "s", "kv <= q", "kv <= q"},
    {"alibi", "s + slope[h] * f32(kv - q)", "kv <= q", "causal, with ALiBi's slopes"},
    {"softcap", "30.0f * tanh(s / 30.0f)", "kv <= q", "causal, scores within 30"},
    {"document", "s", "kv <= q && doc[q] == doc[kv]", "causal, 12 documents"},
    {"window", "s", "kv <= q && q - kv < 1024", "causal, the last 1024 keys"},
    {"prefix", "s", "kv <= q || kv < 1024", "causal after a prefix of 1024 keys"},
    {"relative", "s + table[q - kv + kv_len]", "kv <= q", "causal, a learned bias by distance"},
}};

Case made(const Row& row, const BenchOptions& o, Data& data) {
  Case out{row.name, {}, {}};
  Text text;
  const std::int64_t kv = o.of_kv_seq();
  const auto capture = [&](const char* name, Owned owned) {
    text.capture(name, owned.tensor);
    out.captures.push_back(std::move(owned));
  };
  if (row.score.find("slope") != std::string::npos)
    capture("slope", data.fill(DType::f32, {o.heads}, [&](std::int64_t h) {
      return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(o.heads));
    }));
  if (row.score.find("table") != std::string::npos)
    capture("table", data.normal(DType::f32, {kv + o.first_query() + o.seq}));
  if (row.mask.find("doc") != std::string::npos) {
    const std::int64_t length = std::max(o.seq, kv);
    capture("doc",
            data.fill(DType::i32, {length}, [&](std::int64_t i) { return static_cast<double>(i * 12 / length); }));
  }
  out.attention = {.score = text.score(row.score), .mask = text.mask(row.mask)};
  return out;
}

/// A user's own expressions. Captures given only as a type hold random numbers; integer ones hold sorted ids.
Case made(const TextOptions& options, Data& data) {
  const auto with_data = [&](const std::string&, DType type, std::span<const std::int64_t> extents) {
    const std::vector<std::int64_t> shape(extents.begin(), extents.end());
    if (compiler::type_of(type) == ir::Type::F32) return data.normal(type, shape);
    const std::int64_t n = Tensor(nullptr, type, shape).size();
    return data.fill(type, shape, [&](std::int64_t i) { return static_cast<double>(i * 12 / n); });
  };
  TextAttention text = build(options, Captures::FilesOrTypes, with_data, data.device());
  Case out{"own", text.attention, {}};
  for (auto& [name, owned] : text.captures) out.captures.push_back(std::move(owned));
  return out;
}

runtime::Extent extent_of(const BenchOptions& o) {
  return {.batch = static_cast<std::int32_t>(o.batch),
          .heads = static_cast<std::int32_t>(o.heads),
          .q_len = static_cast<std::int32_t>(o.seq),
          .kv_len = static_cast<std::int32_t>(o.of_kv_seq()),
          .q_offset = static_cast<std::int32_t>(o.first_query())};
}

/// Gives up after 60 s, which is the default limit of `cover`.
runtime::TileLists listed(const runtime::Tiles& tiles, const runtime::Extent& e) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds limit{60};
  return tiles.lists(e, false, 1, [end = Clock::now() + limit, limit](double share) {
    if (Clock::now() > end)
      throw Error("too-slow", "the mask takes too long to evaluate", {},
                  fmt::format("{:.1f} % of its rows of tiles were evaluated in {} s", 100 * share, limit.count()),
                  "make the lengths smaller");
  });
}

double pairs_of(const runtime::TileLists& lists) {
  return static_cast<double>(lists.some + lists.all) * lists.extent.tile_q * lists.extent.tile_kv;
}

/// Counting this many rows takes a few seconds.
constexpr double most_counted_rows = 1 << 26;

/// Pairs that the mask keeps, over all heads: the basis of flop counts.
double live_pairs(const Attention& attention, const BenchOptions& o) {
  const compiler::LoweredMod lowered = compiler::lower(attention);
  const runtime::Extent extent = extent_of(o);
  const double rows = static_cast<double>(o.seq) * (lowered.cover.by_batch ? static_cast<double>(o.batch) : 1) *
                      (lowered.cover.by_head ? static_cast<double>(o.heads) : 1);
  if (rows > most_counted_rows)
    throw Error("bad-size", "there are too many rows of pairs to count",
                {.name = fmt::format("--batch {} --heads {} --seq {}", o.batch, o.heads, o.seq)},
                fmt::format("{:.0f} would be counted one by one, and the most is {:.0f}", rows, most_counted_rows),
                "make one of these smaller");
  const runtime::Tiles tiles(lowered);
  if (const auto live = tiles.live(extent)) return static_cast<double>(*live);
  return pairs_of(listed(tiles, extent));
}

/// The sum of `count` over all entries.
double of_entries(const BenchOptions& o, const std::function<double(const BenchOptions&)>& count) {
  const std::vector<std::int64_t>& lengths = o.packed() ? o.lengths : o.kv_lengths;
  if (lengths.empty()) return count(o);
  double sum = 0;
  BenchOptions alone = o;
  alone.batch = 1;
  for (const std::int64_t length : lengths) {
    if (o.packed())
      alone.seq = length;
    else
      alone.kv_seq = length;
    sum += count(alone);
  }
  return sum;
}

double kept_pairs(const Case& one, const BenchOptions& o) {
  return of_entries(o, [&](const BenchOptions& alone) { return live_pairs(one.attention, alone); });
}

}  // namespace

std::string mod_digest(const Case& one) { return compiler::lower(one.attention).mod.digest().hex(); }

std::vector<std::string> bench_rows() {
  std::vector<std::string> names;
  for (const Row& row : known_rows) names.push_back(row.name);
  return names;
}

std::vector<Case> bench_cases(const BenchOptions& o, Data& data) {
  std::vector<Case> out;
  if (o.text.given())
    out.push_back(made(o.text, data));
  else
    for (const Row& row : known_rows)
      if (o.rows.empty() || std::find(o.rows.begin(), o.rows.end(), row.name) != o.rows.end())
        out.push_back(made(row, o, data));
  for (Case& one : out) one.attention.exact = o.exact.asked();
  return out;
}

nlohmann::ordered_json Times::json() const {
  return {{"best", best()}, {"p10", p10()}, {"median", median()}, {"p90", p90()}};
}

void check_positions(const std::vector<Case>& cases, const CallOptions& options) {
  for (const Case& one : cases) options.check_position(compiler::lower(one.attention));
}

std::string_view name_of(BenchOptions::Direction direction) {
  switch (direction) {
    case BenchOptions::Direction::forward: return "forward";
    case BenchOptions::Direction::backward: return "backward";
    case BenchOptions::Direction::step: return "step";
  }
  throw Bug("a bench has an unknown direction");
}

double forward_flop(const Case& one, const BenchOptions& o) {
  return kept_pairs(one, o) * 2 * static_cast<double>(o.d + o.of_dv());
}

double flop_of(const Case& one, const BenchOptions& o) {
  const auto d = static_cast<double>(o.d), dv = static_cast<double>(o.of_dv());
  double widths = 0;
  if (o.direction() != BenchOptions::Direction::backward) widths += d + dv;
  if (o.has_backward()) widths += 3 * d + 2 * dv;
  return kept_pairs(one, o) * 2 * widths;
}

CapturedGradients::CapturedGradients(const Attention& attention, const Data& data, std::optional<DType> type) {
  const compiler::LoweredMod lowered = compiler::lower(attention);
  std::vector<bool> has(lowered.slots.captures.size());
  for (const compiler::Derivative* of : {&lowered.mod.dscore, &lowered.mod.dprob, &lowered.mod.dsink})
    for (const compiler::Scatter& scatter : of->captures) has[scatter.capture] = true;
  for (std::size_t slot = 0; slot < has.size(); ++slot) {
    const Tensor& of = lowered.slots.captures[slot];
    if (!has[slot] || std::ranges::find(captured, of, &Backward::Captured::of) != captured.end()) continue;
    const DType own = of.dtype == DType::f64 ? DType::f32 : of.dtype;
    memory.push_back(data.zeros(type.value_or(own), of));
    names.push_back(lowered.mod.captures[slot].name);
    captured.push_back({of, memory.back().tensor});
  }
}

namespace {

/// Columns of a key and its value: values may be columns of the keys.
std::int64_t columns_in_memory(const CallOptions& o) { return o.d + (o.v_columns ? 0 : o.of_dv()); }

}  // namespace

double kept_bytes(const Case& one, const BenchOptions& o) {
  const compiler::LoweredMod lowered = compiler::lower(one.attention);
  const runtime::Tiles tiles(lowered);
  const double keys = of_entries(o, [&](const BenchOptions& alone) {
    runtime::Extent extent = extent_of(alone);
    extent.tile_q = extent.q_len;
    extent.tile_kv = 1;
    const runtime::TileLists lists = listed(tiles, extent);
    return static_cast<double>(lists.some + lists.all);
  });
  const double by_key_head = keys / static_cast<double>(o.heads) * static_cast<double>(o.of_kv_heads());
  return by_key_head * static_cast<double>(columns_in_memory(o)) * static_cast<double>(size_of(o.kept_type()));
}

double visited_pairs(const Case& one, const BenchOptions& o, int tile_q, int tile_kv) {
  const compiler::LoweredMod lowered = compiler::lower(one.attention);
  const runtime::Tiles tiles(lowered);
  return of_entries(o, [&](const BenchOptions& alone) {
    runtime::Extent extent = extent_of(alone);
    extent.tile_q = tile_q;
    extent.tile_kv = tile_kv;
    return pairs_of(listed(tiles, extent));
  });
}

double tensor_bytes(const BenchOptions& o) {
  return of_entries(o, [](const BenchOptions& alone) {
    const double q = static_cast<double>(alone.heads * alone.seq) * static_cast<double>(alone.d + alone.of_dv()),
                 kv = static_cast<double>(alone.of_kv_heads() * alone.of_kv_seq()) *
                      static_cast<double>(columns_in_memory(alone));
    return static_cast<double>(alone.batch) *
           (q * static_cast<double>(size_of(alone.type())) + kv * static_cast<double>(size_of(alone.kept_type())));
  });
}

}  // namespace attune::tools
