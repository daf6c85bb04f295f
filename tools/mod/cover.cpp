// tools/mod/cover.cpp — attune cover: which tiles a mask leaves empty, full or partial, the derivation, and a picture
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "compiler/explain.h"
#include "compiler/lower.h"
#include "ir/print.h"
#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/picture/draw.h"
#include "runtime/engines/picture/page.h"
#include "tools/options/picture.h"
#include "tools/options/text.h"
#include "tools/output/output.h"
#include "tools/output/progress.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using runtime::counted, runtime::grouped, runtime::percent;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct CoverOptions {
  TextOptions text;
  ExtentOptions extent{.q_len = 4096, .tile = "128x128"};
  std::string along = "kv";
  std::optional<std::string> svg;
  double limit = 60;
  bool json = false, no_picture = false, ascii = false;
};

/// Up to this many rows, pairs are counted one by one from exact bands.
constexpr std::int64_t most_counted_rows = 1 << 21;
/// Operations of one evaluation, about three seconds; the time limit is checked between evaluations.
constexpr double most_operations = 1e9;
/// Rows of lists: at most a gigabyte if each row is one run.
constexpr std::int64_t most_list_rows = 1 << 25;
double microseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

class CoverVerb {
 public:
  explicit CoverVerb(const CoverOptions& o)
      : o_(o), e_(o.extent.extent()), text_(built(o.text, Captures::FilesOrTypes)) {
    require_seconds("--limit", o.limit);
    require_word("--along", o.along, std::array<std::string, 2>{"kv", "q"});
    // Not `!mask`, which would negate the mask instead of testing whether one is given.
    if (!bool(text_.attention.mask) && !bool(text_.attention.score))
      throw Error("no-mask", "attune cover has no mask to work on", {},
                  "a cover shows the pairs that a mask keeps, or a score other than -inf",
                  "write attune cover 'kv <= q', or use --mask");
    lowered_ = compiler::lower(Attention{.score = text_.attention.score, .mask = text_.attention.mask});
    names_ = lowered_.mod.signature();
    const auto start = Clock::now();
    derive_us_ = microseconds(start);
    for (const ir::Expr& e : ir::in_order(std::span(&lowered_.cover.mask, 1))) {
      if (e->op != ir::Op::Read) continue;
      for (const std::string& name : text_.without_data)
        if (lowered_.slots.captures[e->bits].data == text_.captures.at(name).tensor.data &&
            std::find(missing_.begin(), missing_.end(), name) == missing_.end())
          missing_.push_back(name);
    }
  }

  void operator()() {
    if (missing_.empty()) measure();
    if (o_.svg) {
      if (!missing_.empty()) throw no_data();
      const std::array files{FileBytes{*o_.svg, picture()}};
      write_files(files);
    }
    if (o_.svg && is_stdout(*o_.svg)) return;
    if (o_.json)
      write_json(json(), 2);
    else
      write_out(page());
  }

 private:
  std::string why_no_tiles() const {
    return fmt::format("the mask reads {}, declared without data", fmt::join(missing_, ", "));
  }
  Error no_data() const {
    return Error("no-data", "tiles cannot be listed", {.name = "--svg"}, why_no_tiles(),
                 fmt::format("give the file: --capture {}=FILE.npy", missing_[0]));
  }

  void measure() {
    runtime::check_reads(lowered_, lowered_.slots.captures, e_);
    const std::int64_t entries = entries_apart();
    check_rows(entries);
    auto start = Clock::now();
    const runtime::Tiles tiles(lowered_);
    summarise_us_ = microseconds(start);
    start = Clock::now();
    const double cost = tiles.cost();
    if (cost > most_operations) throw too_slow(cost, "one evaluation of the mask takes longer");
    const auto progressed = [&, progress = std::make_shared<Progress>(progress_style("auto", o_.json), "cover", 1)](
                                std::string_view of, double share) {
      progress->at(share);
      if (microseconds(start) > 1e6 * o_.limit)
        throw too_slow(cost, fmt::format("{} of the {} were evaluated", percent(share, 1), of));
    };
    lists_ = tiles.lists(e_, o_.along == "q", 1, [&](double share) { progressed("rows of tiles", share); });
    lists_us_ = microseconds(start);
    if (e_.q_len * entries <= most_counted_rows) live_ = tiles.live(e_);
    if (e_.q_len <= runtime::most_pairs_across && e_.kv_len <= runtime::most_pairs_across &&
        (o_.svg || (!live_ && entries == 1)))
      pairs_ = runtime::kept_pairs(lowered_, compiler::args(lowered_), e_, static_cast<std::int32_t>(o_.extent.b),
                                   static_cast<std::int32_t>(o_.extent.h),
                                   [&](double share) { progressed("pairs", share); });
    if (!live_ && entries == 1 && !pairs_.empty())
      live_ = std::count(pairs_.begin(), pairs_.end(), 1) * std::int64_t{e_.batch} * e_.heads;
  }

  void check_rows(std::int64_t entries) const {
    const std::int64_t tiles = o_.along == "q" ? e_.kv_tiles() : e_.q_tiles();
    if (tiles <= most_list_rows / entries) return;
    throw Error("bad-size", "there are too many rows of tiles to list", {.name = "--tile " + o_.extent.tile},
                fmt::format("there are {} for each of {}, and the most is {} together", grouped(tiles),
                            counted(entries, "batch entry and head", "batch entries and heads"),
                            grouped(most_list_rows)),
                "make the tiles larger, or the sizes smaller");
  }

  Error too_slow(double cost, const std::string& why) const {
    return Error("too-slow", "the mask takes too long to evaluate", {.name = fmt::format("--limit {}", o_.limit)},
                 fmt::format("{} in {} s: each evaluation is {} operations", why, o_.limit,
                             grouped(static_cast<std::int64_t>(std::min(cost, 1e18)))),
                 "make the sizes or the sums smaller, or raise the limit");
  }

  std::int64_t entries_apart() const {
    return (lowered_.cover.by_batch ? e_.batch : std::int64_t{1}) *
           (lowered_.cover.by_head ? e_.heads : std::int64_t{1});
  }
  std::string why_not_counted() const {
    if (lowered_.cover.along_kv.exact())
      return fmt::format("rows are counted one by one, up to {}", grouped(most_counted_rows));
    return fmt::format("bands do not decide them, and each is evaluated {}",
                       entries_apart() > 1 ? "if all batch entries and heads are equal"
                                           : fmt::format("up to {0} x {0}", runtime::most_pairs_across));
  }

  std::string tile_text() const { return fmt::format("{} x {}", e_.tile_q, e_.tile_kv); }
  std::int64_t pairs_in_all() const { return std::int64_t{e_.batch} * e_.heads * e_.q_len * e_.kv_len; }
  std::int64_t empty() const { return lists_.total - lists_.some - lists_.all; }

  std::string page() const {
    std::string out = fmt::format("mask      {}\n", ir::print(lowered_.cover.mask, names_));
    out += "\nwhat a tile keeps\n" + compiler::explain(lowered_.cover, names_);
    out += fmt::format("\ntiles of {}, {} by {}\n", tile_text(), counted(e_.q_len, "query", "queries"),
                       counted(e_.kv_len, "key", "keys"));
    if (!missing_.empty()) {
      out += fmt::format("  unknown  {}   — give the file: --capture {}=FILE.npy\n", why_no_tiles(), missing_[0]);
      return out + fmt::format("\ntime\n  derive {:.1f} µs\n", derive_us_);
    }
    const auto total = static_cast<double>(lists_.total);
    const auto count = [&](std::string_view name, std::int64_t n, std::string_view note) {
      out += fmt::format("  {:<9}{:>14}   {:>8}   — {}\n", name, grouped(n), percent(static_cast<double>(n), total),
                         note);
    };
    if (std::int64_t{e_.batch} * e_.heads > 1)
      out += fmt::format("  of {} and {} together\n", counted(e_.batch, "batch entry", "batch entries"),
                         counted(e_.heads, "head", "heads"));
    count("full", lists_.all, "no mask to evaluate");
    count("partial", lists_.some, "the mask is evaluated");
    count("empty", empty(), "never visited");
    if (live_) {
      const auto in_all = static_cast<double>(pairs_in_all());
      out += fmt::format("  {:<9}{:>14}   {:>8}   — kept\n", "pairs", grouped(*live_),
                         percent(static_cast<double>(*live_), in_all));
    } else {
      out += fmt::format("  {:<9}{:>14}   {:>8}   — {}\n", "pairs", "unknown", "", why_not_counted());
    }
    out += fmt::format("  {:<9}{} along {} in {}, {} bytes\n", "lists", counted(std::ssize(lists_.runs), "run", "runs"),
                       o_.along, counted(std::ssize(lists_.offsets) - 1, "row", "rows"),
                       grouped(static_cast<std::int64_t>(lists_.bytes())));
    if (!o_.no_picture) out += "\n" + terminal();
    out += fmt::format("\ntime\n  derive {:.1f} µs, summarise {:.1f} µs, list {:.1f} µs\n", derive_us_, summarise_us_,
                       lists_us_);
    return out;
  }

  std::string terminal() const {
    const runtime::Grid g = runtime::grid(lists_, static_cast<std::int32_t>(o_.extent.b),
                                          static_cast<std::int32_t>(o_.extent.h), 64);
    auto [lines, legend] = characters(g, o_.ascii);
    if (g.by_row * g.by_column > 1) legend += fmt::format("  a cell is {} x {} tiles", g.by_row, g.by_column);
    if (lists_.by_batch || lists_.by_head) legend += fmt::format("  b = {}, h = {}", o_.extent.b, o_.extent.h);
    return lines + legend + "\n";
  }

  std::string picture() const {
    return runtime::compact_svg(runtime::tiles_drawing(ir::print(lowered_.cover.mask, names_), {lists_, live_, pairs_},
                                                       static_cast<std::int32_t>(o_.extent.b),
                                                       static_cast<std::int32_t>(o_.extent.h)));
  }

  Json json() const {
    Json all;
    all["mask"] = ir::print(lowered_.cover.mask, names_);
    const ir::Signature names = lowered_.cover.signature(names_);
    for (const auto& [key, bands, axis] : {std::tuple{"along_kv", &lowered_.cover.along_kv, ir::Input::KV},
                                           std::tuple{"along_q", &lowered_.cover.along_q, ir::Input::Q}}) {
      Json& entry = all[key];
      entry["form"] = compiler::form(*bands, axis, names);
      entry["closed"] = bands->exact();
      for (const auto& [name, list] : {std::pair{"keeps", &bands->kept}, {"drops", &bands->gone}}) {
        entry[name] = Json::array();
        for (const compiler::Band& b : *list)
          entry[name].push_back(
              {{"begin", ir::print(b.begin, names)}, {"end", ir::print(b.end, names)}, {"exact", b.exact}});
      }
      entry["stops"] = Json::array();
      for (const compiler::Stop& s : bands->stops)
        entry["stops"].push_back({{"at", ir::print(s.at, names)}, {"why", s.why}});
    }
    all["may_keep"] = ir::print(lowered_.cover.may_keep, names);
    all["may_drop"] = ir::print(lowered_.cover.may_drop, names);
    all["data"] = Json::array();
    for (const compiler::Summary& s : lowered_.cover.summaries) all["data"].push_back(compiler::print(s, names_));
    all["by_batch"] = lowered_.cover.by_batch;
    all["by_head"] = lowered_.cover.by_head;
    all["extent"] = {{"batch", e_.batch},   {"heads", e_.heads},       {"q_len", e_.q_len},
                     {"kv_len", e_.kv_len}, {"q_offset", e_.q_offset}, {"tile", {e_.tile_q, e_.tile_kv}}};
    all["derive_us"] = derive_us_;
    if (!missing_.empty()) {
      all["tiles"] = nullptr;
      all["no_tiles"] = why_no_tiles();
      return all;
    }
    all["tiles"] = {
        {"total", lists_.total}, {"live", lists_.some + lists_.all},
        {"full", lists_.all},    {"partial", lists_.some},
        {"empty", empty()},      {"sparsity", static_cast<double>(empty()) / static_cast<double>(lists_.total)}};
    all["pairs"] = {{"total", pairs_in_all()}, {"kept", live_ ? Json(*live_) : Json(nullptr)}};
    all["lists"] = {{"along", o_.along},
                    {"rows", lists_.offsets.size() - 1},
                    {"runs", lists_.runs.size()},
                    {"bytes", lists_.bytes()}};
    all["summarise_us"] = summarise_us_;
    all["list_us"] = lists_us_;
    return all;
  }

  const CoverOptions& o_;
  runtime::Extent e_;
  TextAttention text_;
  compiler::LoweredMod lowered_;
  ir::Signature names_;
  std::vector<std::string> missing_;  ///< captures of the mask without data
  runtime::TileLists lists_;
  std::optional<std::int64_t> live_;
  std::vector<char> pairs_;
  double derive_us_ = 0, summarise_us_ = 0, lists_us_ = 0;
};

}  // namespace

void add_cover(CLI::App& app) {
  auto o = std::make_shared<CoverOptions>();
  CLI::App& verb = *app.add_subcommand("cover", "which tiles a mask leaves empty, full or partial, and why");
  o->text.add_to(verb, "a mask");
  o->extent.add_to(verb);
  verb.add_option("--along", o->along, "lists of kv for each tile of queries, or of q for each tile of keys")
      ->type_name("kv|q");
  verb.add_option("--svg", o->svg, "write a figure to this file, - for stdout; pairs show up to 512 x 512")
      ->type_name("FILE");
  verb.add_option("--limit", o->limit, "seconds after which it gives up; 60 if left out")->type_name("X");
  verb.add_flag("--no-picture", o->no_picture, "numbers alone");
  verb.add_flag("--ascii", o->ascii, "draw the picture in ASCII, as in locales other than UTF-8");
  verb.add_flag("--json", o->json, "as JSON");
  verb.footer(
      "Shows what attune derives from a mask without evaluating every pair: the bands of keys that a tile of queries "
      "keeps and drops, the tiles that are full, partial and empty, how many pairs stay, and a picture. A score "
      "removes pairs too, where it is -inf. If a mask reads captured tensors without data, attune prints which data it "
      "needs.\n"
      "Examples:\n"
      "  attune cover 'kv <= q' --q-len 512 --tile 64 --json\n"
      "  attune cover 'kv <= q && q - kv < 1024' --q-len 8192 --tile 128x128 --svg window.svg");
  verb.callback([o] { CoverVerb{*o}(); });
}

}  // namespace attune::tools
