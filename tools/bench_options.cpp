// tools/bench_options.cpp — the options of attune bench: which go together, and what follows from them
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "compiler/lower.h"
#include "tools/bench.h"

namespace attune::tools {

void BenchOptions::check() const {
  require_word("--target", target, std::array<std::string, 3>{"auto", "cpu", "cuda"});
  require_word("--cover", cover.value_or("each"), std::array<std::string, 2>{"each", "once"});
  require_word("--starts", starts.value_or("host"), std::array<std::string, 2>{"host", "device"});
  if (step && backward)
    throw Error("bad-usage", "the command line cannot be read", {.name = "--step"}, "--backward is a part of it",
                "leave one of them out");
  if (grads && !has_backward())
    throw Error("bad-usage", "the command line cannot be read", {.name = "--grads"}, "a forward has no gradients",
                "add --backward or --step, or leave it out");
  if (cover && direction() == Direction::backward)
    throw Error("bad-usage", "the command line cannot be read", {.name = "--cover"},
                "a cover is for forwards; a backward lists its own tiles", "leave it out, or write --step");
  if (starts && !packed())
    throw Error("bad-usage", "the command line cannot be read", {.name = "--starts"},
                "it sets where the starts of packed sequences are", "add --lengths, or leave it out");
  if (graph && has_backward())
    throw Error("bad-usage", "the command line cannot be read", {.name = "--graph"}, "graphs of forwards are measured",
                "leave it out, or measure a forward");
  CallOptions::check();
  if (has_backward()) check_for_backward();
  for (const std::string& row : rows) require_word("--row", row, bench_rows());
  require_size("--graph", graph.value_or(1), 1, compiler::max_length);
  for (const int n : threads) require_size("--threads", n, 1, std::numeric_limits<int>::max());
  require_seconds("--seconds", seconds);
}

void BenchOptions::add_to(CLI::App& verb) {
  std::string names;
  for (const std::string& row : bench_rows()) names += (names.empty() ? "" : "|") + row;
  verb.add_option("--row", rows, "a known attention; all of them if left out")->type_name(names);
  text.add_bare_to(verb);
  text.add_to(verb, Captures::FilesOrTypes);
  add_types_to(verb);
  add_sizes_to(verb);
  add_cache_to(verb);
}

void BenchOptions::add_verb_options_to(CLI::App& verb) {
  progress.add_to(verb);
  verb.add_option("--target", target, "the engine")->type_name("auto|cpu|cuda");
  verb.add_option("--threads", threads, "the number of threads; several numbers are measured one after another")
      ->type_name("N...");
  verb.add_option("--seconds", seconds, "how long to measure each row, at least; 1 if left out")->type_name("X");
  verb.add_flag("--backward", backward, "the gradients of q, k and v, given what the forward gave");
  verb.add_flag("--step", step, "a training step's: the forward, and then the gradients");
  verb.add_flag("--grads", grads, "with these: also the gradients of the captured tensors");
  verb.add_option("--kernel", kernel, "on a GPU: measure this kernel, with these tile parameters")
      ->type_name("NAME[:m=N,n=N,...]");
  verb.add_option(
          "--cover", cover,
          "on a GPU: list tiles in each call, or once before all calls, as for a model's layers; each if left out")
      ->type_name("each|once");
  verb.add_option("--lengths", lengths, "on a GPU: lengths of packed sequences, instead of --batch, --seq and --kv-seq")
      ->type_name("N,...")
      ->delimiter(',');
  verb.add_option(
          "--starts", starts,
          "where the starts of packed sequences are; the host does not wait for those on a device; host if left out")
      ->type_name("host|device");
  verb.add_option("--graph", graph, "on a GPU: capture N forwards as one CUDA graph, and report their mean")
      ->type_name("N");
  verb.add_flag("--paced", paced, "on a GPU: measure all rows once for each line of stdin, until it ends");
  verb.add_option("--save", save, "append the results under this name, or to this file of JSON lines")
      ->type_name("NAME|FILE.jsonl")
      ->group("History");
  verb.add_option("--compare", compare, "compare with the saved results")
      ->type_name("NAME|FILE.jsonl")
      ->group("History");
  verb.add_flag("--json", json, "one line of JSON for each row");
}

void BenchOptions::check_for_host() const {
  for (const auto& [option, given] : {std::pair{"--kernel", kernel.has_value()},
                                      {"--exact", exact.word.has_value()},
                                      {"--cover", cover.has_value()},
                                      {"--lengths", packed()},
                                      {"--graph", graph.has_value()},
                                      {"--paced", paced}})
    if (given)
      throw Error("bad-usage", "the command line cannot be read", {.name = option}, "it is for kernels of a GPU",
                  "add --target cuda, or leave it out");
}

nlohmann::ordered_json BenchOptions::shape() const {
  nlohmann::ordered_json out{{"dtype", dtype}, {"batch", batch},        {"heads", heads}, {"kv_heads", of_kv_heads()},
                             {"seq", seq},     {"kv_seq", of_kv_seq()}, {"d", d},         {"dv", of_dv()}};
  if (cache_dtype) out["cache_dtype"] = *cache_dtype;
  if (packed()) out["lengths"] = lengths;
  if (starts == "device") out["starts"] = *starts;
  if (decode) out["decode"] = true;
  if (q_offset) out["q_offset"] = *q_offset;
  if (v_columns) out["v_columns"] = *v_columns;
  if (!kv_lengths.empty()) out["kv_lengths"] = kv_lengths;
  if (page_size) out["page_size"] = *page_size;
  if (const auto other = unusually_exact()) out["exact"] = *other;
  if (grads) out["grads"] = true;
  return out;
}

std::optional<bool> BenchOptions::unusually_exact() const {
  const bool usual = codegen::is_exact({}, type());
  return exact.asked().value_or(usual) == usual ? std::nullopt : exact.asked();
}

std::string BenchOptions::exact_text() const {
  const auto other = unusually_exact();
  return !other ? "" : *other ? ", exact" : ", not exact";
}

bool is_of(const codegen::Preference& preference, bool backward) {
  using codegen::Way;
  if (!backward) return takes(preference, Way::forward);
  return takes(preference, Way::backward) || takes(preference, Way::queries) || takes(preference, Way::keys);
}

std::optional<codegen::Preference> preference_of(const BenchOptions& o) {
  if (!o.kernel) return std::nullopt;
  codegen::Preference out{codegen::variant(*o.kernel), true, ""};
  const bool of_forward = is_of(out, false), of_backward = is_of(out, true);
  const bool wanted = o.direction() != BenchOptions::Direction::backward && of_forward;
  if (!wanted && !(o.has_backward() && of_backward))
    throw Error("bad-kernel", "the requested kernel does not support this call", {.name = out.variant.text()},
                o.has_backward() ? "it computes a forward" : "it computes a backward",
                o.has_backward() ? "name a backward kernel, or leave --backward out" : "add --backward");
  return out;
}

}  // namespace attune::tools
