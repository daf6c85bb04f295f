// runtime/engines/cover/tiles.cpp — bands give the candidate tiles; intervals and splitting decide what bands leave
// open
#include "runtime/engines/cover/tiles.h"

#include <algorithm>
#include <atomic>

#include "runtime/engines/call.h"
#include "runtime/machine/threads.h"

namespace attune::runtime {
namespace {

using compiler::Bands;

/// The place to cut [begin, end): the border nearest to the middle, among the borders of the largest blocks that have
/// one inside.
struct Cut {
  std::int32_t at, period;  ///< period 0: no border, the middle
};
Cut cut(const std::vector<std::int32_t>& periods, std::int32_t begin, std::int32_t end) {
  const std::int32_t middle = begin + (end - begin) / 2;
  for (const std::int32_t p : periods) {
    const std::int32_t below = middle / p * p;
    if (below > begin) return {below, p};
    if (end - below > p) return {below + p, p};
  }
  return {middle, 0};
}

/// Limit on the evaluations while a tile is split; past it the tile counts as Some. A tile of 128 x 128 has 16384
/// pairs.
constexpr int most_questions = 1 << 15;
/// Pairs sampled before a tile is split.
constexpr int samples = 24;

}  // namespace

Extent extent_of(const compiler::Problem& problem, const Sequence& seq, std::int64_t tile_q, std::int64_t tile_kv) {
  return {.batch = static_cast<std::int32_t>(problem.batch),
          .heads = static_cast<std::int32_t>(problem.q_heads),
          .q_len = static_cast<std::int32_t>(seq.q_len),
          .kv_len = static_cast<std::int32_t>(seq.kv_len),
          .q_offset = seq.q_offset,
          .kv_offset = seq.kv_offset,
          .kv_after = seq.kv_after,
          .tile_q = static_cast<std::int32_t>(tile_q),
          .tile_kv = static_cast<std::int32_t>(tile_kv)};
}

/// One thread's state: the programs' memory.
class Tiles::Asker {
 public:
  /// `between` is called now and then, between evaluations, if it is given.
  Asker(const Tiles& tiles, const Extent& e, std::int32_t b, std::int32_t h, std::function<void()> between = {})
      : tiles_(tiles), extent_(e), between_(std::move(between)) {
    if (between_) pause_ = pause_of(tiles.cost());
    env_.b = b;
    env_.h = h;
    env_.q_len = e.q_len;
    env_.kv_len = e.kv_offset + e.kv_len + e.kv_after;
    env_.params = tiles.params_;
    env_.read = &tiles.summaries_.read();
  }

  void at(std::int32_t b, std::int32_t h) {
    env_.b = b;
    env_.h = h;
  }

  std::int64_t asked = 0;  ///< evaluations so far

  Keep ask(const Rectangle& r) {
    count();
    place(r);
    tiles_.verdict_.run(env_, verdict_memory_, tiles_.precision());
    if (tiles_.verdict_.result(0, verdict_memory_) == 0) return Keep::None;
    return tiles_.verdict_.result(1, verdict_memory_) == 0 ? Keep::All : Keep::Some;
  }

  bool kept(std::int32_t q, std::int32_t kv, ir::Precision precision) {
    count();
    env_.q = q;
    env_.kv = kv;
    tiles_.mask_.run(env_, mask_memory_, precision);
    return tiles_.mask_.result(0, mask_memory_) != 0;
  }

  /// Like ask(), but splits a tile that stays open until one pair is kept and one is removed.
  Keep settle(const Rectangle& r) {
    const Keep first = ask(r);
    if (first != Keep::Some) return first;
    bool keeps = false, drops = false;
    // Kernels compute in f32, with other functions and with fused products. If f64 and f32 disagree on a pair, only the
    // kernel decides it.
    const auto look = [&](std::int32_t q, std::int32_t kv) {
      (kept(q, kv, ir::Precision::f64) ? keeps : drops) = true;
      if (tiles_.rounds_) (kept(q, kv, ir::Precision::f32) ? keeps : drops) = true;
    };
    look(r.q0, r.kv0);
    look(r.q1 - 1, r.kv1 - 1);
    if (!(keeps && drops)) look(r.q0, r.kv1 - 1);
    if (!(keeps && drops)) look(r.q1 - 1, r.kv0);
    // Then samples the whole tile: intervals seldom prove anything about unordered data, but a few samples show that it
    // keeps some pairs.
    for (int i = 1; i <= samples && !(keeps && drops); ++i)
      look(r.q0 + static_cast<std::int32_t>(std::int64_t{i} * 2654435769 % (1 << 30) * (r.q1 - r.q0) >> 30),
           r.kv0 + static_cast<std::int32_t>((std::int64_t{i} * (r.kv1 - r.kv0)) / (samples + 1)));
    int questions = 0;
    open_.assign(1, r);
    while (!open_.empty() && !(keeps && drops)) {
      const Rectangle part = open_.back();
      open_.pop_back();
      if (++questions > most_questions) return Keep::Some;
      const std::int32_t q = part.q1 - part.q0, kv = part.kv1 - part.kv0;
      if (q * kv <= 4) {
        for (std::int32_t i = part.q0; i < part.q1; ++i)
          for (std::int32_t j = part.kv0; j < part.kv1; ++j) look(i, j);
        continue;
      }
      if (questions > 1) {
        const Keep k = ask(part);
        if (k == Keep::None) drops = true;
        if (k == Keep::All) keeps = true;
        if (k != Keep::Some) continue;
      }
      look(part.q0 + q / 2, part.kv0 + kv / 2);
      const Cut at_q = q > 1 ? cut(tiles_.q_periods_, part.q0, part.q1) : Cut{0, -1},
                at_kv = kv > 1 ? cut(tiles_.kv_periods_, part.kv0, part.kv1) : Cut{0, -1};
      if (at_q.period > at_kv.period || (at_q.period == at_kv.period && q >= kv)) {
        open_.push_back({part.q0, at_q.at, part.kv0, part.kv1});
        open_.push_back({at_q.at, part.q1, part.kv0, part.kv1});
      } else {
        open_.push_back({part.q0, part.q1, part.kv0, at_kv.at});
        open_.push_back({part.q0, part.q1, at_kv.at, part.kv1});
      }
    }
    return keeps && drops ? Keep::Some : keeps ? Keep::All : Keep::None;
  }

  struct Segment {
    std::int32_t begin, end;
  };

  /// Evaluates bands as segments of positions, clipped to the axis: kept ones into kept_, removed ones into gone_.
  void bands(const ir::Program& program, ir::Program::Memory& memory, const Bands& bands, const Rectangle& r,
             std::int32_t axis_begin, std::int32_t axis_end) {
    count();
    place(r);
    program.run(env_, memory, tiles_.precision());
    std::size_t i = 0;
    exact_ = true;
    for (auto* list : {&kept_, &gone_}) {
      list->clear();
      for (const compiler::Band& band : list == &kept_ ? bands.kept : bands.gone) {
        const auto begin = std::max(axis_begin, static_cast<std::int32_t>(program.result(i, memory)));
        const auto end = std::min(axis_end, static_cast<std::int32_t>(program.result(i + 1, memory)));
        i += 2;
        if (begin >= end) continue;
        list->push_back({begin, end});
        exact_ &= band.exact;
      }
    }
  }

  /// Adds the runs of tiles along one axis for one tile of the other. `bands_alone`: only if the bands are exact;
  /// otherwise adds nothing and returns false.
  bool runs(bool along_q, std::int32_t tile, std::vector<Run>& into, bool bands_alone = false) {
    const Extent& e = extent_;
    const Bands& said = along_q ? tiles_.cover_.along_q : tiles_.cover_.along_kv;
    const std::int32_t origin = along_q ? e.q_offset : e.kv_offset, size = along_q ? e.tile_q : e.tile_kv;
    const std::int32_t axis_end = origin + (along_q ? e.q_len : e.kv_len);
    Rectangle r = rectangle(tile, tile);
    if (along_q) {
      r.q0 = origin;
      r.q1 = axis_end;
    } else {
      r.kv0 = origin;
      r.kv1 = axis_end;
    }
    bands(along_q ? tiles_.along_q_ : tiles_.along_kv_, along_q ? q_memory_ : kv_memory_, said, r, origin, axis_end);
    if (bands_alone && !exact_) return false;
    // Converts segments to tiles, sorts and merges them.
    for (auto* list : {&kept_, &gone_}) {
      for (Segment& s : *list) s = {(s.begin - origin) / size, (s.end - origin + size - 1) / size};
      std::sort(list->begin(), list->end(), [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
      std::size_t n = 0;
      for (const Segment& s : *list) {
        if (n > 0 && s.begin <= (*list)[n - 1].end)
          (*list)[n - 1].end = std::max((*list)[n - 1].end, s.end);
        else
          (*list)[n++] = s;
      }
      list->resize(n);
    }
    // Runs of the previous row must not grow into this row's.
    const std::size_t start = into.size();
    const auto push = [&](std::int32_t begin, std::int32_t end, Keep keep) {
      if (into.size() > start && into.back().end == begin && into.back().keep == keep)
        into.back().end = end;
      else if (begin < end)
        into.push_back({begin, end, keep});
    };
    auto gone = gone_.begin();
    for (const Segment& k : kept_) {
      std::int32_t at = k.begin;
      while (at < k.end) {
        while (gone != gone_.end() && gone->end <= at) ++gone;
        const bool inside = gone != gone_.end() && gone->begin <= at;
        const std::int32_t to = gone == gone_.end() ? k.end : std::min(k.end, inside ? gone->end : gone->begin);
        if (!inside)
          push(at, to, Keep::All);
        else if (exact_)
          push(at, to, Keep::Some);
        else
          split(along_q, tile, at, to, push);
        at = to;
      }
    }
    return true;
  }

  Rectangle rectangle(std::int32_t tile_q, std::int32_t tile_kv) const {
    const Extent& e = extent_;
    return {e.q_offset + tile_q * e.tile_q, e.q_offset + std::min(e.q_len, (tile_q + 1) * e.tile_q),
            e.kv_offset + tile_kv * e.tile_kv, e.kv_offset + std::min(e.kv_len, (tile_kv + 1) * e.tile_kv)};
  }

  /// Number of pairs kept for one query; nothing if its bands are not exact.
  std::optional<std::int64_t> live(std::int32_t q) {
    const std::int32_t first = extent_.kv_offset, end = first + extent_.kv_len;
    bands(tiles_.along_kv_, kv_memory_, tiles_.cover_.along_kv, {q, q + 1, first, end}, first, end);
    if (!exact_) return std::nullopt;
    std::sort(kept_.begin(), kept_.end(), [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
    std::int64_t sum = 0;
    std::int32_t reached = first;
    for (const Segment& s : kept_) {
      sum += std::max(0, s.end - std::max(s.begin, reached));
      reached = std::max(reached, s.end);
    }
    return sum;
  }

 private:
  void count() {
    if (++asked % pause_ == 0 && between_) between_();
  }

  template <class Push>
  void split(bool along_q, std::int32_t tile, std::int32_t begin, std::int32_t end, const Push& push) {
    Rectangle r = along_q ? rectangle(begin, tile) : rectangle(tile, begin);
    const Rectangle last = along_q ? rectangle(end - 1, tile) : rectangle(tile, end - 1);
    r.q1 = last.q1;
    r.kv1 = last.kv1;
    const Keep k = end - begin == 1 ? settle(r) : ask(r);
    if (k == Keep::None) return;
    if (k == Keep::All || end - begin == 1) return push(begin, end, k);
    const std::int32_t middle = begin + (end - begin) / 2;
    split(along_q, tile, begin, middle, push);
    split(along_q, tile, middle, end, push);
  }

  void place(const Rectangle& r) {
    env_.q_begin = r.q0;
    env_.q_end = r.q1;
    env_.kv_begin = r.kv0;
    env_.kv_end = r.kv1;
  }

  const Tiles& tiles_;
  const Extent& extent_;
  std::function<void()> between_;
  std::int64_t pause_ = 1;
  ir::Env env_;
  ir::Program::Memory verdict_memory_, mask_memory_, kv_memory_, q_memory_;
  std::vector<Segment> kept_, gone_;
  bool exact_ = false;  ///< every band that holds a position here is exact
  std::vector<Rectangle> open_;
};

Tiles::Tiles(const compiler::LoweredMod& lowered, const compiler::Args& args)
    : cover_(lowered.cover), summaries_(args.captures, cover_.summaries), params_(args.params),
      verdict_(cover_.programs->verdict), mask_(cover_.programs->mask), along_kv_(cover_.programs->along_kv),
      along_q_(cover_.programs->along_q), q_periods_(cover_.programs->q_periods),
      kv_periods_(cover_.programs->kv_periods),
      rounds_(cover_.programs->rounds ||
              std::ranges::any_of(args.captures, [](const Tensor& t) { return t.dtype == DType::f64; })) {}

Keep Tiles::keep(const Extent& e, std::int32_t b, std::int32_t h, std::int32_t tile_q, std::int32_t tile_kv) const {
  Asker asker(*this, e, b, h);
  return asker.settle(asker.rectangle(tile_q, tile_kv));
}

void Tiles::row(const Extent& e, std::int32_t b, std::int32_t h, std::int32_t tile_q, std::vector<Run>& into) const {
  Asker(*this, e, b, h).runs(false, tile_q, into);
}

bool Tiles::rows_by_bands(const Extent& e, std::int32_t b, std::int32_t h, std::int32_t begin, std::int32_t end,
                          std::vector<Run>& into, std::vector<std::int32_t>& ends) const {
  Asker asker(*this, e, b, h);
  for (std::int32_t tile_q = begin; tile_q < end; ++tile_q) {
    if (!asker.runs(false, tile_q, into, true)) return false;
    ends.push_back(static_cast<std::int32_t>(into.size()));
  }
  return true;
}

void Tiles::column(const Extent& e, std::int32_t b, std::int32_t h, std::int32_t tile_kv,
                   std::vector<Run>& into) const {
  Asker(*this, e, b, h).runs(true, tile_kv, into);
}

double Tiles::cost() const { return std::max({verdict_.cost(), mask_.cost(), along_kv_.cost(), along_q_.cost()}); }

std::int64_t pause_of(double cost) {
  constexpr double operations = 1e7;  // about 0.1 s
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(operations / std::max(1.0, cost)));
}

TileLists Tiles::lists(const Extent& e, bool along_q, int threads, const Progress& progress) const {
  TileLists out{.extent = e,
                .by_batch = cover_.by_batch,
                .by_head = cover_.by_head,
                .along_q = along_q,
                .offsets = {},
                .runs = {}};
  const std::int32_t batches = out.by_batch ? e.batch : 1, heads = out.by_head ? e.heads : 1;
  const std::int32_t rows = along_q ? e.kv_tiles() : e.q_tiles();
  const std::int64_t count = std::int64_t{batches} * heads * rows;
  const auto parts = static_cast<std::size_t>(std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(1, count)));
  struct Part {
    std::vector<Run> runs;
    std::vector<std::int64_t> sizes;
    std::int64_t asked = 0;
  };
  std::vector<Part> done(parts);
  const auto fill = [&](std::size_t p) {
    const std::int64_t from = count * static_cast<std::int64_t>(p) / static_cast<std::int64_t>(parts);
    std::int64_t i = from;
    std::function<void()> between;
    if (progress) between = [&] { progress(static_cast<double>(i) / static_cast<double>(count)); };
    Asker asker(*this, e, 0, 0, std::move(between));
    Part& part = done[p];
    const std::int64_t to = count * static_cast<std::int64_t>(p + 1) / static_cast<std::int64_t>(parts);
    part.sizes.reserve(static_cast<std::size_t>(to - from));
    for (; i < to; ++i) {
      const std::int64_t bh = i / rows;
      asker.at(static_cast<std::int32_t>(bh / heads), static_cast<std::int32_t>(bh % heads));
      const std::size_t before = part.runs.size();
      asker.runs(along_q, static_cast<std::int32_t>(i % rows), part.runs);
      part.sizes.push_back(static_cast<std::int64_t>(part.runs.size() - before));
    }
    part.asked = asker.asked;
  };
  std::atomic<std::size_t> next = 0;
  on_threads(parts, [&] {
    for (std::size_t p; (p = next++) < parts;) fill(p);
  });
  out.offsets.assign(1, 0);
  out.offsets.reserve(static_cast<std::size_t>(count) + 1);
  for (const Part& part : done) {
    out.asked += part.asked;
    for (const std::int64_t n : part.sizes) out.offsets.push_back(out.offsets.back() + n);
    out.runs.insert(out.runs.end(), part.runs.begin(), part.runs.end());
  }
  const std::int64_t copies = std::int64_t{e.batch} * e.heads / (std::int64_t{batches} * heads);
  for (const Run& r : out.runs) (r.keep == Keep::All ? out.all : out.some) += (r.end - r.begin) * copies;
  out.total = std::int64_t{e.batch} * e.heads * e.q_tiles() * e.kv_tiles();
  return out;
}

std::optional<std::int64_t> Tiles::live(const Extent& e) const {
  const std::int32_t batches = cover_.by_batch ? e.batch : 1, heads = cover_.by_head ? e.heads : 1;
  std::int64_t sum = 0;
  for (std::int32_t b = 0; b < batches; ++b)
    for (std::int32_t h = 0; h < heads; ++h) {
      Asker asker(*this, e, b, h);
      for (std::int32_t q = 0; q < e.q_len; ++q) {
        const auto live = asker.live(e.q_offset + q);
        if (!live) return std::nullopt;
        sum += *live;
      }
    }
  return sum * (std::int64_t{e.batch} * e.heads / (std::int64_t{batches} * heads));
}

}  // namespace attune::runtime
