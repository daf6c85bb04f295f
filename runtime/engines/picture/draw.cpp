// runtime/engines/picture/draw.cpp — evaluates a Mod over the cells of a picture; titles and notes
#include "runtime/engines/picture/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/check.h"
#include "ir/print.h"
#include "runtime/engines/call.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/picture/page.h"

namespace attune::runtime {
namespace {

/// A figure in a page stays small: above this many bytes it shows only tiles.
constexpr std::size_t most_svg = 200 * 1000;
/// Limit on the evaluations of a score for one picture, which take some seconds.
constexpr std::int64_t most_scores = std::int64_t{1} << 24;
/// Rows whose pairs are counted one by one from exact bands.
constexpr std::int64_t most_counted_rows = 1 << 21;

/// The largest picture that is drawn within a few seconds.
constexpr std::int64_t most_rows = 1 << 22, most_tiles = 1 << 25;

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

std::string title(const compiler::LoweredMod& lowered) {
  const ir::Signature names = lowered.mod.signature();
  std::string out;
  const auto add = [&](const char* name, const ir::Expr& e, std::string_view plain) {
    const std::string text = e ? ir::print(e, names) : "";
    if (!text.empty() && text != plain) out += (out.empty() ? "" : "\n") + fmt::format("{}: {}", name, text);
  };
  add("score", lowered.mod.score, "s");
  add("mask", lowered.mod.mask, "true");
  add("prob", lowered.mod.prob, "p");
  add("sink", lowered.mod.sink, "");
  return out.empty() ? "plain attention" : out;
}

/// The rows of one head, computed by the oracle. Without q, s is 0.
class Rows {
 public:
  Rows(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view)
      : view_(view), forward_(forward()), problem_(problem()),
        oracle_({.mod = lowered, .args = args, .problem = problem_, .what = forward_}) {}

  std::int32_t rows() const { return std::min(view_.extent.q_len, view_.cells); }
  std::int32_t columns() const { return std::min(view_.extent.kv_len, view_.cells); }

  /// Adds a row of cells: the mean score and the mean gradient of the pairs that are kept, and the mean probability of
  /// all pairs, where a removed pair counts as 0. The mean and not the sum, because cells may hold different numbers of
  /// keys and sums would show stripes.
  void operator()(std::int32_t row, Numbers& to) {
    const std::int32_t n = view_.extent.kv_len;
    const auto query = static_cast<std::int32_t>((std::int64_t{2} * row + 1) * view_.extent.q_len / (2 * rows()));
    const std::vector<OracleRow::Pair> kept = oracle_.row(view_.b, view_.h, query).kept;
    auto pair = kept.begin();
    std::int64_t begin = 0;
    for (std::int32_t c = 0; c < columns(); ++c) {
      const std::int64_t end = std::int64_t{c + 1} * n / columns();
      double score = 0, mass = 0, gradient = 0;
      int count = 0;
      for (; pair != kept.end() && pair->kv < end; ++pair, ++count) {
        score += pair->score;
        mass += oracle_.prob(pair->kv, pair->p);
        gradient += oracle_.dprob(pair->kv, pair->p) * pair->p * (1 - pair->p) * oracle_.dscore(pair->kv, pair->s);
      }
      to.score.values.push_back(count ? score / count : nothing);
      to.prob.values.push_back(count ? mass / static_cast<double>(end - begin) : nothing);
      to.grad.values.push_back(count ? gradient / count : nothing);
      begin = end;
    }
  }

 private:
  Forward forward() {
    check(view_);
    Tensor q = view_.q, k = view_.k;
    const Extent& e = view_.extent;
    if (!q.given()) {
      q = Tensor(&zero_, DType::f32, {e.batch, e.heads, e.q_len, 1}, {0, 0, 0, 0});
      k = Tensor(&zero_, DType::f32, {1, 1, e.kv_len, 1}, {0, 0, 0, 0});
    }
    const Tensor v(&zero_, DType::f32, {k.shape[0], k.shape[1], k.shape[2], 0}, {0, 0, 0, 0});
    return {.q = q, .k = k, .v = v};
  }

  compiler::Problem problem() const {
    compiler::Problem p;
    const Tensor &q = forward_.q, &k = forward_.k;
    p.batch = q.shape[0];
    p.q_heads = q.shape[1], p.kv_heads = k.shape[1], p.group = p.q_heads / p.kv_heads;
    p.q.length = view_.extent.q_len, p.kv.length = view_.extent.kv_len;
    p.d = q.shape[3];
    p.kv_shared = k.shape[0] == 1;
    p.scale = view_.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, p.d))));
    p.q_offset = view_.extent.q_offset;
    return p;
  }

  const View& view_;
  float zero_ = 0;
  Forward forward_;
  compiler::Problem problem_;
  OracleRows oracle_;
};

/// `closed`: true if the ends of bands determine a row of tiles, so that its tiles are not evaluated one by one.
void check_tiles(const Extent& e, bool closed) {
  const std::int64_t rows = e.q_tiles(), tiles = rows * e.kv_tiles();
  const auto check_count = [](std::string_view of, std::int64_t n, std::int64_t most) {
    if (n <= most) return;
    throw Error("bad-size", fmt::format("there are too many {} for a picture", of), {},
                fmt::format("there are {}, and the most is {}", grouped(n), grouped(most)),
                "make the tiles larger, or the lengths smaller");
  };
  check_count("rows of tiles", rows, most_rows);
  if (!closed) check_count("tiles", tiles, most_tiles);
}

}  // namespace

void check_reads(const compiler::LoweredMod& lowered, std::span<const Tensor> captures, const Extent& extent) {
  compiler::Problem problem;
  problem.batch = extent.batch;
  problem.q_heads = problem.kv_heads = extent.heads;
  problem.q.length = extent.q_len;
  problem.kv.length = extent.kv_len;
  problem.q_offset = extent.q_offset;
  compiler::check_reads(lowered.mod, captures, problem);
}

void check(const View& view) {
  compiler::check_scale(view.scale);
  const Tensor &q = view.q, &k = view.k;
  const bool fits = q.rank == 4 && k.given() && k.rank == 4 && q.shape[3] == k.shape[3] && k.shape[1] > 0 &&
                    q.shape[1] % k.shape[1] == 0 && view.b < q.shape[0] && view.h < q.shape[1] &&
                    (k.shape[0] == 1 || k.shape[0] == q.shape[0]);
  if (q.given() && !fits)
    throw Error("picture-qk", "q and k do not fit a picture of scores", {},
                fmt::format("q is {}, and k {}", q.describe(), k.given() ? k.describe() : "not given"),
                "pass q [B, Hq, Sq, D] and k [B, Hkv, Skv, D], on the host");
}

Kept kept(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view) {
  const Tiles tiles(lowered, args);
  Extent one = view.extent;
  one.batch = one.heads = 1;
  check_tiles(one, lowered.cover.along_kv.exact());
  Kept out{.lists = {.extent = one, .offsets = {0}, .runs = {}}};
  for (std::int32_t tile = 0; tile < one.q_tiles(); ++tile) {
    tiles.row(view.extent, view.b, view.h, tile, out.lists.runs);
    out.lists.offsets.push_back(std::ssize(out.lists.runs));
  }
  for (const Run& run : out.lists.runs) (run.keep == Keep::All ? out.lists.all : out.lists.some) += run.end - run.begin;
  out.lists.total = std::int64_t{one.q_tiles()} * one.kv_tiles();
  if (one.q_len <= most_pairs_across && one.kv_len <= most_pairs_across) {
    out.pairs = kept_pairs(lowered, args, one, view.b, view.h);
    out.live = std::count(out.pairs.begin(), out.pairs.end(), 1);
  } else if (!lowered.cover.by_batch && !lowered.cover.by_head && one.q_len <= most_counted_rows) {
    out.live = tiles.live(one);
  }
  return out;
}

Numbers numbers(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view) {
  Rows rows(lowered, args, view);
  const std::int64_t keys = view.extent.kv_len;
  if (rows.rows() * keys > most_scores)
    throw Error("bad-size", "there are too many keys for a picture of scores", {},
                fmt::format("it evaluates {} rows of {} keys", rows.rows(), grouped(keys)),
                fmt::format("show at most {} keys, or the tiles alone", grouped(most_scores / rows.rows())));
  const std::string when = view.q.given() ? "" : " where q . k = 0";
  const auto heat = [&](const char* what, Heat::Scale scale) {
    return Heat{.caption = what + when, .scale = scale, .rows = rows.rows(), .columns = rows.columns(), .values = {}};
  };
  Numbers out{heat("score", Heat::Scale::around_zero), heat("probability", Heat::Scale::by_row),
              heat("d probability / d s", Heat::Scale::around_zero)};
  for (std::int32_t r = 0; r < rows.rows(); ++r) rows(r, out);
  return out;
}

std::vector<char> kept_pairs(const compiler::LoweredMod& lowered, const compiler::Args& args, const Extent& e,
                             std::int32_t b, std::int32_t h, const Tiles::Progress& progress) {
  const ir::ReadCapture read = reader(args.captures);
  const ir::Program program(lowered.cover.mask);
  ir::Program::Memory memory;
  ir::Env env;
  env.b = b, env.h = h;
  env.q_len = e.q_len, env.kv_len = e.kv_len;
  env.params = args.params;
  env.read = &read;
  std::vector<char> pairs;
  const std::int64_t all = std::int64_t{e.q_len} * e.kv_len, pause = pause_of(program.cost());
  for (env.q = e.q_offset; env.q < e.q_offset + e.q_len; ++env.q)
    for (env.kv = 0; env.kv < e.kv_len; ++env.kv) {
      program.run(env, memory);
      pairs.push_back(program.result(0, memory) != 0);
      if (progress && std::ssize(pairs) % pause == 0)
        progress(static_cast<double>(pairs.size()) / static_cast<double>(all));
    }
  return pairs;
}

Drawing tiles_drawing(std::string title, const Kept& kept, std::int32_t b, std::int32_t h) {
  const TileLists& lists = kept.lists;
  const Extent& e = lists.extent;
  Drawing d{.title = std::move(title), .notes = {}, .extent = e, .grid = grid(lists, b, h, 128)};
  d.notes.push_back(fmt::format("{} × {} in tiles of {} × {}", counted(e.q_len, "query", "queries"),
                                counted(e.kv_len, "key", "keys"), e.tile_q, e.tile_kv));
  const bool many = std::int64_t{e.batch} * e.heads > 1;
  if (many) d.notes[0] += fmt::format(", b = {}, h = {} of {} × {}", b, h, e.batch, e.heads);
  d.notes.push_back(fmt::format("{}{} full, {} partial, {} empty tiles", many ? "together " : "", grouped(lists.all),
                                grouped(lists.some), grouped(lists.total - lists.some - lists.all)));
  if (kept.live) {
    const std::int64_t in_all = std::int64_t{e.batch} * e.heads * e.q_len * e.kv_len;
    d.notes.back() += fmt::format("; {} of {} pairs kept ({})", grouped(*kept.live), grouped(in_all),
                                  percent(static_cast<double>(*kept.live), static_cast<double>(in_all)));
  }
  const bool several = d.grid.by_row * d.grid.by_column > 1;
  if (several)
    d.notes.push_back(
        fmt::format("a cell is {} × {} tiles, and partial where these differ", d.grid.by_row, d.grid.by_column));
  if (!several) d.pairs = kept.pairs;
  return d;
}

std::string compact_svg(Drawing drawing) {
  std::string all = svg(drawing);
  if (all.size() <= most_svg || drawing.pairs.empty()) return all;
  drawing.pairs.clear();
  return svg(drawing);
}

Drawing drawing(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& asked) {
  check(asked);
  View view = asked;
  const Extent& e = view.extent;
  if (!view.tiles && !view.score && !view.prob && !view.grad) {
    view.tiles = lowered.removes();
    view.score = view.q.given() || !(lowered.mod.score->op == ir::Op::Input);
    view.prob = view.score;
    if (!view.tiles && !view.score) view.tiles = true;
  }
  Drawing d{.title = title(lowered), .notes = {}, .extent = e};
  if (view.tiles) {
    d = tiles_drawing(d.title, kept(lowered, args, view), 0, 0);
    if (lowered.cover.by_batch || lowered.cover.by_head) d.notes[0] += fmt::format(", b = {}, h = {}", view.b, view.h);
  } else {
    d.notes.push_back(fmt::format("{} × {}", counted(e.q_len, "query", "queries"), counted(e.kv_len, "key", "keys")));
  }
  if (view.score || view.prob || view.grad) {
    auto [score, prob, grad] = numbers(lowered, args, view);
    if (view.score) d.heat.push_back(std::move(score));
    if (view.prob) d.heat.push_back(std::move(prob));
    if (view.grad) d.heat.push_back(std::move(grad));
  }
  d.plain = view.plain;
  return d;
}

std::string draw(const compiler::LoweredMod& lowered, const compiler::Args& args, const View& view) {
  return compact_svg(drawing(lowered, args, view));
}

}  // namespace attune::runtime
