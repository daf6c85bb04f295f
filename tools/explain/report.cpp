// tools/explain/report.cpp — attune report: everything about a mod as one HTML page that needs no other file
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <memory>

#include "codegen/choose/call_choices.h"
#include "compiler/bind.h"
#include "compiler/explain.h"
#include "compiler/trace.h"
#include "playground/say.h"
#include "runtime/engines/picture/page.h"
#include "tools/explain/explain.h"
#include "tools/options/picture.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

struct ReportOptions {
  PictureOptions picture;
  ExplainOptions explain;
  std::string title = "An attention", file = "-";
};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

constexpr std::string_view page_style = R"(<style>
:root{--page:#fff;--ink:#1d2126;--dim:#5a636e;--line:#d5dae0;--box:#f5f7f9;color-scheme:light}
@media(prefers-color-scheme:dark){:root{--page:#14181d;--ink:#e6e9ec;--dim:#a3acb6;--line:#343c46;--box:#1c222a;color-scheme:dark}}
body{margin:0 auto;max-width:1100px;padding:16px;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:22px}h2{font-size:16px;margin:26px 0 6px}h3{font-size:14px;margin:12px 0 3px;color:var(--dim)}
pre{background:var(--box);border:1px solid var(--line);border-radius:5px;padding:9px 12px;overflow-x:auto;font-size:13px;margin:4px 0}
svg{max-width:100%;height:auto}table{border-collapse:collapse}td{padding:2px 16px 2px 0}td+td{text-align:right}
summary{cursor:pointer;color:var(--dim)}
</style>
)";

/// As many positions as show what the mod's whole numbers do: twice the largest, up to 8192 and to the extents of
/// captured tensors.
std::int64_t length_of(const runtime::Written& written, std::int64_t least) {
  const TextAttention text = runtime::build(written, Captures::FilesOrTypes);
  const compiler::BoundMod bound = compiler::trace(text.attention);
  double largest = 0;
  for (const ir::Expr& root : {bound.mod.score, bound.mod.mask, bound.mod.prob, bound.mod.sink})
    if (root) largest = std::max(largest, static_cast<double>(largest_literal(root)));
  const std::vector<double> params = compiler::args(bound).params;
  for (std::size_t i = 0; i < params.size(); ++i)
    if (bound.mod.params[i].type == ir::Type::I32) largest = std::max(largest, std::abs(params[i]));
  std::int64_t length = least;
  while (length < 8192 && static_cast<double>(length) < 2 * largest) length *= 2;
  for (const auto& [name, capture] : text.captures)
    for (const std::int64_t extent :
         std::span(capture.tensor.shape).first(static_cast<std::size_t>(capture.tensor.rank)))
      if (extent >= least) length = std::min(length, extent);
  return length;
}

class Report {
 public:
  explicit Report(const ReportOptions& o) : o_(o) {
    steps_.keep_text = true;
    of_ = o.picture.pictured(true, &steps_);
    written_ = o.picture.text;
    if (written_.bare)
      (o.picture.text.mask || !bool(of_.text.attention.mask) ? written_.score : written_.mask) = written_.bare;
  }

  std::string html() {
    runtime::View view = of_.view;
    view.tiles = of_.lowered.removes();
    view.score = view.prob = view.grad = true;
    out_ = fmt::format("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                       "content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n{1}<h1>{0}</h1>\n",
                       escaped(o_.title), page_style);
    heading("The picture");
    out_ += runtime::draw(of_.lowered, compiler::args(of_.lowered), view);
    if (view.tiles) tiles();
    const playground::Said said = playground::say(written_, of_.traced, o_.picture.look(of_));
    heading("The same in C++, in Python and in a shell");
    for (const std::string& text : {said.cpp, said.python, said.command}) block(text);
    heading("How the compiler transforms it");
    for (const compiler::Section& s : compiler::sections(of_.lowered, steps_)) {
      out_ += "<h3>" + escaped(s.title) + "</h3>\n";
      block(s.lines);
    }
    engines();
    sources();
    return out_ + "</html>\n";
  }

 private:
  void heading(std::string_view text) { out_ += fmt::format("<h2>{}</h2>\n", text); }
  void block(const std::string& text) { out_ += "<pre>" + escaped(text) + "</pre>\n"; }

  void tiles() {
    const runtime::Kept kept = runtime::kept(of_.lowered, compiler::args(of_.lowered), of_.view);
    const runtime::TileLists& lists = kept.lists;
    const runtime::Extent& e = lists.extent;
    out_ += "<table>\n";
    const auto row = [&](std::string_view what, std::int64_t n, std::int64_t of) {
      out_ += fmt::format("<tr><td>{}<td>{}<td>{}\n", what, runtime::grouped(n),
                          runtime::percent(static_cast<double>(n), static_cast<double>(of)));
    };
    row("full tiles: no mask to evaluate", lists.all, lists.total);
    row("partial tiles", lists.some, lists.total);
    row("empty tiles: never visited", lists.total - lists.all - lists.some, lists.total);
    if (kept.live) row("pairs kept", *kept.live, std::int64_t{e.q_len} * e.kv_len);
    out_ += "</table>\n";
  }

  void engines() {
    ExplainOptions o = o_.explain;
    o.text = o_.picture.text;
    if (is_for_cpu(o)) {
      heading("On this CPU");
      block(explain_cpu(of_.lowered.mod, o).text);
    }
    if (o.target == "cuda") {
      heading("On a GPU");
      block(explain_cuda(of_.lowered, o).text);
    }
  }

  void sources() {
    codegen::SourcesOf what{.call = o_.explain.call.spec(of_.lowered)};
    const auto add = [&](std::string_view way) {
      for (const codegen::CallSource& one : codegen::call_sources(of_.lowered, what)) {
        out_ += fmt::format("<details><summary>{}: {} ({})</summary>\n", way, one.of, one.source.name);
        block(one.source.text);
        out_ += "</details>\n";
      }
    };
    heading("The CUDA sources for NVRTC");
    add("forward");
    what.call.backward.emplace();
    for (const compiler::CaptureSlot& c : of_.lowered.mod.captures)
      what.call.backward->push_back(compiler::type_of(c.dtype) == ir::Type::F32);
    add("gradients");
    what.lists = true;
    add("lists of tiles");
  }

  const ReportOptions& o_;
  runtime::Written written_;
  compiler::Steps steps_;
  Pictured of_;
  std::string out_;
};

}  // namespace

void add_report(CLI::App& app) {
  auto o = std::make_shared<ReportOptions>();
  CLI::App& verb = *app.add_subcommand("report", "everything about an attention as one HTML page");
  o->picture.add_to(verb, true);
  o->explain.call.add_to(verb, true);
  verb.add_option("--target", o->explain.target, "also how this engine computes a call, as in explain")
      ->type_name("auto|cpu|cuda");
  verb.add_flag("--measure", o->explain.measure, "also measure it here: on the CPU unless --target cuda");
  verb.add_option("--title", o->title, "the title of the page")->type_name("TEXT");
  verb.add_option("-o,--html", o->file, "the file to write; stdout if left out")->type_name("FILE");
  verb.footer(
      "Writes one page that needs no other file: the picture, how many tiles and pairs stay, the same attention in "
      "C++, Python and as a command, what explain, grad and cover say, and the CUDA sources. Captured tensors without "
      "data get random numbers, or the data of --fill. Without --q-len the picture has as many positions as twice the "
      "largest whole number of the mod, from 128 to 8192.\n"
      "Examples:\n"
      "  attune report 'kv <= q && q - kv < 48' -o window.html\n"
      "  attune report --score 's + slope[h] * f32(kv - q)' --mask 'kv <= q' --capture 'slope=f32[8]' --heads 8 \\\n"
      "    --fill slope=slopes --title ALiBi -o alibi.html");
  verb.callback([o, &verb] {
    require_expression(o->picture.text, "report");
    require_word("--target", o->explain.target, std::array<std::string, 3>{"auto", "cpu", "cuda"});
    ExtentOptions& extent = o->picture.extent;
    if (verb.count("--q-len") + verb.count("--kv-len") + verb.count("--q") == 0)
      extent.q_len = length_of(o->picture.text, extent.q_len);
    o->explain.call.check();
    o->explain.call.batch = extent.batch, o->explain.call.heads = extent.heads;
    o->explain.call.settle(verb.count("--seq") > 0);
    o->explain.bench().check();
    write_files(std::array{FileBytes{o->file, Report{*o}.html()}});
  });
}

}  // namespace attune::tools
