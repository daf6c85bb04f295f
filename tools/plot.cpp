// tools/plot.cpp — attune plot: tiles of a mask, scores and probabilities as one picture
#include <CLI/CLI.hpp>
#include <array>
#include <fmt/format.h>
#include <memory>

#include "compiler/check.h"
#include "runtime/npy.h"
#include "runtime/picture/draw.h"
#include "tools/extent_options.h"
#include "tools/text.h"
#include "tools/verbs.h"
#include "tools/write_files.h"

namespace attune::tools {
namespace {

struct PlotOptions {
  TextOptions text;
  ExtentOptions extent;
  std::optional<std::string> q, k;
  std::optional<double> scale;
  std::vector<std::string> panels;
  std::string file = "-";
};

void plot(const PlotOptions& o) {
  const TextAttention text = built(o.text, Captures::FilesOrTypes);
  for (const std::string& name : text.without_data)
    throw Error("no-data", "a picture cannot be drawn", {}, fmt::format("it reads {}, declared without data", name),
                fmt::format("give the file: --capture {}=FILE.npy", name));
  runtime::View view{.extent = o.extent.extent(),
                     .b = static_cast<std::int32_t>(o.extent.b),
                     .h = static_cast<std::int32_t>(o.extent.h),
                     .scale = o.scale};
  for (const std::string& panel : o.panels) {
    require_word("--panels", panel, std::array<std::string, 3>{"tiles", "score", "prob"});
    (panel == "tiles" ? view.tiles : panel == "score" ? view.score : view.prob) = true;
  }
  Owned q, k;
  if (o.q) q = read_npy(*o.q, "--q " + *o.q), view.q = q.tensor;
  if (o.k) k = read_npy(*o.k, "--k " + *o.k), view.k = k.tensor;
  if (q.tensor.rank == 4 && k.tensor.rank == 4) {
    view.extent.q_len = static_cast<std::int32_t>(q.tensor.shape[2]);
    view.extent.kv_len = static_cast<std::int32_t>(k.tensor.shape[2]);
  }
  const compiler::LoweredMod lowered = compiler::lower(text.attention);
  compiler::Problem problem;
  problem.batch = view.extent.batch;
  problem.q_heads = problem.kv_heads = view.extent.heads;
  problem.q.length = view.extent.q_len;
  problem.kv.length = view.extent.kv_len;
  problem.q_offset = view.extent.q_offset;
  compiler::check_reads(lowered.mod, lowered.slots.captures, problem);
  write_files(std::array{FileBytes{o.file, runtime::draw(lowered, compiler::args(lowered), view)}});
}

}  // namespace

void add_plot(CLI::App& app) {
  auto o = std::make_shared<PlotOptions>();
  CLI::App& verb = *app.add_subcommand("plot", "a mask's tiles, scores and probabilities as a picture");
  o->text.add_bare_to(verb);
  o->text.add_to(verb, Captures::FilesOrTypes);
  o->extent.add_to(verb);
  verb.add_option("--q", o->q, "queries, for scores as they are; without them q . k is 0")->type_name("FILE");
  verb.add_option("--k", o->k, "keys")->type_name("FILE");
  verb.add_option("--scale", o->scale, "the factor of q . k; 1 / sqrt(D) if left out")->type_name("X");
  verb.add_option("--panels", o->panels, "tiles, score and prob; by default what there is to see")
      ->delimiter(',')
      ->type_name("LIST");
  verb.add_option("-o,--svg", o->file, "the file to write; stdout if left out")->type_name("FILE");
  verb.footer(
      "Draws one batch entry and head: which tiles the mask leaves, what the score is for each pair, and what "
      "becomes of it in the softmax. Readable on light and dark pages.\n"
      "Examples:\n"
      "  attune plot 'kv <= q && q - kv < 48' --tile 16 -o window.svg\n"
      "  attune plot --score 's + 0.1f * f32(kv - q)' --mask 'kv <= q' --q-len 64 --panels score,prob -o alibi.svg");
  verb.callback([o] {
    require_expression(o->text, "plot");
    plot(*o);
  });
}

}  // namespace attune::tools
