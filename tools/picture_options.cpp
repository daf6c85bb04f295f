// tools/picture_options.cpp — files, words and sizes become an attention with data
#include "tools/picture_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "compiler/check.h"
#include "playground/fill.h"
#include "playground/say.h"
#include "runtime/machine/archive.h"

namespace attune::tools {
namespace {

/// The --fill of each captured tensor; `captures` are the --capture of all.
std::map<std::string, playground::Fill, std::less<>> fills_of(const std::vector<std::string>& all,
                                                              const std::vector<std::string>& captures) {
  std::map<std::string, playground::Fill, std::less<>> out;
  for (const std::string& one : all) {
    const std::size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error("bad-assignment", "--fill is not followed by NAME=…", {.name = "--fill", .line = 0, .text = one},
                  "a name, a = and a word are expected", "write --fill slope=slopes");
    const std::string name = one.substr(0, equals);
    std::vector<std::string> names;
    for (const std::string& capture : captures) names.push_back(capture.substr(0, capture.find('=')));
    if (std::ranges::find(names, name) == names.end())
      throw Error("unknown-capture", fmt::format("there is no capture `{}` to fill", name),
                  {.name = "--fill", .line = 0, .text = one, .begin = 0, .end = name.size()},
                  names.empty() ? "no --capture is given" : fmt::format("captures are {}", fmt::join(names, ", ")),
                  "name one that --capture declares by its type");
    out[name] = playground::fill_of(one.substr(equals + 1), one);
  }
  return out;
}

}  // namespace

void PictureOptions::add_to(CLI::App& verb, bool beside_call) {
  text.add_bare_to(verb);
  text.add_to(verb, Captures::FilesOrTypes);
  extent.add_to(verb, beside_call);
  verb.add_option("--fill", fills,
                  "fills a captured tensor that was given as a type: normal, slopes, documents:6, coins:0.2, "
                  "list:1 0x5 and others, as the playground's page lists them")
      ->type_name("NAME=WORD")
      ->allow_extra_args(false);
  verb.add_option("--q", q, "queries, for real scores; without them q . k is 0")->type_name("FILE");
  verb.add_option("--k", k, "keys")->type_name("FILE");
  verb.add_option("--random", random, "random queries and keys of this width, instead of files")->type_name("D");
  verb.add_option("--scale", scale, "the factor of q . k; 1 / sqrt(D) if left out")->type_name("X");
}

std::vector<std::string> PictureOptions::look(const Pictured& of) const {
  auto how = fills_of(fills, text.captures);
  for (const std::string& name : of.declared)
    if (playground::Fill& fill = how[name]; fill.how.empty())
      fill.how = playground::usual_word(of.text.captures.at(name).tensor.dtype);
  std::vector<std::string> out = playground::look_of(of.view, how);
  if (q) out.push_back(fmt::format("--q '{}'", *q));
  if (k) out.push_back(fmt::format("--k '{}'", *k));
  if (random) out.push_back(fmt::format("--random {}", *random));
  if (scale) out.push_back(fmt::format("--scale {}", *scale));
  return out;
}

Pictured PictureOptions::pictured(bool unfilled, compiler::Steps* steps) const {
  if (random) require_size("--random", *random, 1, 1024);
  const auto how = fills_of(fills, text.captures);
  std::vector<std::string> declared;
  const auto filled = [&](const std::string& name, DType type, std::span<const std::int64_t> shape) {
    const auto found = how.find(name);
    if (found == how.end() && !unfilled)
      throw Error("no-data", "a picture cannot be drawn", {}, fmt::format("it reads {}, declared without data", name),
                  fmt::format("give the file: --capture {0}=FILE.npy, or say how to fill it: --fill {0}=normal", name));
    runtime::Owned out{detail::allocate(Device::cpu(), type, shape), {}};
    out.tensor = Tensor(out.memory.get(), type, shape);
    declared.push_back(name);
    playground::fill(out.tensor, found == how.end() ? playground::Fill{} : found->second, name);
    return out;
  };
  Pictured out{.text = built(text, Captures::FilesOrTypes, filled),
               .traced = {},
               .lowered = {},
               .q = {},
               .k = {},
               .view = {.extent = extent.extent(),
                        .b = static_cast<std::int32_t>(extent.b),
                        .h = static_cast<std::int32_t>(extent.h),
                        .scale = scale}};
  out.declared = std::move(declared);
  runtime::View& view = out.view;
  if (q) out.q = read_tensor(*q, "--q " + *q);
  if (k) out.k = read_tensor(*k, "--k " + *k);
  if (random) {
    out.q = playground::random_rows(view.extent.q_len, *random, 2, view.extent);
    out.k = playground::random_rows(view.extent.kv_len, *random, 3, view.extent);
  }
  view.q = out.q.tensor, view.k = out.k.tensor;
  if (view.q.rank == 4 && view.k.rank == 4) {
    view.extent.q_len = static_cast<std::int32_t>(view.q.shape[2]);
    view.extent.kv_len = static_cast<std::int32_t>(view.k.shape[2]);
  }
  out.traced = compiler::trace(out.text.attention);
  out.lowered = compiler::lower(compiler::BoundMod(out.traced), steps);
  compiler::Problem problem;
  problem.batch = view.extent.batch;
  problem.q_heads = problem.kv_heads = view.extent.heads;
  problem.q.length = view.extent.q_len;
  problem.kv.length = view.extent.kv_len;
  problem.q_offset = view.extent.q_offset;
  compiler::check_reads(out.lowered.mod, out.lowered.slots.captures, problem);
  return out;
}

}  // namespace attune::tools
