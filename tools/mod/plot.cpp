// tools/mod/plot.cpp — attune plot: tiles of a mask, scores, probabilities and gradients as a picture or as characters
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <memory>

#include "tools/options/picture.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

struct PlotOptions {
  PictureOptions picture;
  std::vector<std::string> panels;
  std::string file = "-";
  bool terminal = false, ascii = false, plain = false;
};

/// The panels, stacked, at most 64 characters wide.
std::string stacked(const Pictured& of, bool ascii) {
  std::string out;
  runtime::View view = of.view;
  view.cells = 64;
  const runtime::Drawing all = runtime::drawing(of.lowered, compiler::args(of.lowered), view);
  out += all.title + "\n";
  for (const std::string& note : all.notes) out += note + "\n";
  if (all.grid.rows > 0) {
    const auto [lines, legend] = characters(all.grid, ascii);
    out += "\n" + lines + legend + "\n";
  }
  for (const runtime::Heat& heat : all.heat) out += "\n" + digits(heat);
  return out;
}

void plot(const PlotOptions& o) {
  Pictured of = o.picture.pictured(false, nullptr);
  for (const std::string& panel : o.panels) {
    const std::array<std::string, 4> words{"tiles", "score", "prob", "grad"};
    require_word("--panels", panel, words);
    runtime::View& view = of.view;
    const std::array members{&view.tiles, &view.score, &view.prob, &view.grad};
    *members[static_cast<std::size_t>(std::find(words.begin(), words.end(), panel) - words.begin())] = true;
  }
  of.view.plain = o.plain;
  if (o.terminal || o.ascii) return write_out(stacked(of, o.ascii));
  write_files(std::array{FileBytes{o.file, runtime::draw(of.lowered, compiler::args(of.lowered), of.view)}});
}

}  // namespace

void add_plot(CLI::App& app) {
  auto o = std::make_shared<PlotOptions>();
  CLI::App& verb = *app.add_subcommand("plot", "a mask's tiles, scores, probabilities and gradients as a picture");
  o->picture.add_to(verb);
  add_words(verb, "--panels", o->panels, "tiles, score, prob and grad; by default those that the mod has")
      ->type_name("LIST");
  verb.add_option("-o,--svg", o->file, "the file to write; stdout if left out")->type_name("FILE");
  verb.add_flag("--plain", o->plain, "only the panels, without text");
  verb.add_flag("--terminal", o->terminal, "as characters, for a terminal, instead of a file");
  verb.add_flag("--ascii", o->ascii, "the same in ASCII only");
  verb.footer(
      "Draws one batch entry and head: which tiles the mask leaves, the score of each pair, what happens to it in the "
      "softmax, and how much each probability changes with the pair's own s. Readable on light and dark pages.\n"
      "Examples:\n"
      "  attune plot 'kv <= q && q - kv < 48' --tile 16 -o window.svg\n"
      "  attune plot 'kv <= q && q - kv < 48' --tile 16 --terminal\n"
      "  attune plot --score 's + slope[h] * f32(kv - q)' --mask 'kv <= q' --capture 'slope=f32[8]' --heads 8 \\\n"
      "    --fill slope=slopes --q-len 64 --panels score,prob,grad -o alibi.svg");
  verb.callback([o] {
    require_expression(o->picture.text, "plot");
    plot(*o);
  });
}

}  // namespace attune::tools
