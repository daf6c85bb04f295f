// tools/bench_options.cpp — the options of attune bench: which go together, and what follows from them
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "compiler/lower.h"
#include "compiler/problem.h"
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
                "it says where the starts of packed sequences are", "add --lengths, or leave it out");
  for (const auto& [option, given] :
       {std::pair{"--page-size", page_size.has_value()}, {"--kv-len", !kv_lengths.empty() || kv_random.has_value()}})
    if (given && !decode)
      throw Error("bad-usage", "the command line cannot be read", {.name = option},
                  "pages and lengths of each entry are those of a cache, which a decoder's step reads",
                  "write one number of keys, or use attune bench --decode");
  if (graph && has_backward())
    throw Error("bad-usage", "the command line cannot be read", {.name = "--graph"}, "graphs of forwards are measured",
                "leave it out, or measure a forward");
  for (const auto& [option, given] : {std::pair{"--backward", backward}, {"--step", step}, {"--lengths", packed()}})
    if (given && decode)
      throw Error("bad-usage", "the command line cannot be read", {.name = option},
                  "--decode is a forward of few queries, as many of each entry", "leave one of them out");
  if (type() == DType::e4m3 && has_backward())
    throw Error("bad-usage", "the command line cannot be read", {.name = "--dtype"},
                "queries, keys and values of e4m3 have no gradients", "name another type, or measure a forward");
  if (cache_dtype) require_word("--cache-dtype", *cache_dtype, std::array<std::string, 1>{"e4m3"});
  if (cache_dtype && has_backward())
    throw Error("bad-usage", "the command line cannot be read", {.name = "--cache-dtype"},
                "keys and values of e4m3 have no gradients", "leave it out, or measure a forward");
  exact.check();
  for (const std::string& row : rows) require_word("--row", row, bench_rows());
  for (const auto& [option, value] : {std::pair{"--batch", batch},
                                      {"--heads", heads},
                                      {"--kv-heads", kv_heads.value_or(1)},
                                      {"--d", d},
                                      {"--dv", dv.value_or(1)},
                                      {"--seq", seq},
                                      {decode ? "--kv-len" : "--kv-seq", kv_seq.value_or(1)},
                                      {"--kv-len", kv_random.value_or(1)},
                                      {"--page-size", page_size.value_or(1)},
                                      {"--graph", graph.value_or(1)}})
    require_size(option, value, 1, compiler::max_length);
  for (const std::int64_t length : lengths) require_size("--lengths", length, 1, compiler::max_length);
  for (const std::int64_t length : kv_lengths) require_size("--kv-len", length, 1, compiler::max_length);
  for (const int n : threads) require_size("--threads", n, 1, std::numeric_limits<int>::max());
  require_seconds("--seconds", seconds);
  if (heads % of_kv_heads() != 0)
    throw compiler::uneven_heads(heads, of_kv_heads(),
                                 {.name = fmt::format("--heads {} --kv-heads {}", heads, of_kv_heads())}, "",
                                 "make --heads a multiple of --kv-heads");
  check_products();
}

void BenchOptions::check_products() const {
  const std::int64_t widest = std::max(d, of_dv()), longest = std::max(seq, of_kv_seq());
  for (const auto& [what, sizes] : {std::pair{"pairs", std::array{batch, heads, seq, of_kv_seq()}},
                                    {"bytes", std::array{batch, heads, longest, widest * 8}}}) {
    std::int64_t product = 1;
    for (const std::int64_t size : sizes)
      if (__builtin_mul_overflow(product, size, &product))
        throw Error("bad-size", fmt::format("there are too many {} to count", what),
                    {.name = fmt::format("--batch {} --heads {} --seq {} --kv-seq {} --d {} --dv {}", batch, heads, seq,
                                         of_kv_seq(), d, of_dv())},
                    "they are 2^63 or more", "make some of these smaller");
  }
}

void BenchOptions::add_to(CLI::App& verb) {
  std::string names;
  for (const std::string& row : bench_rows()) names += (names.empty() ? "" : "|") + row;
  verb.add_option("--row", rows, "a known attention; all of them if left out")->type_name(names);
  text.add_bare_to(verb);
  text.add_to(verb, Captures::FilesOrTypes);
  add_call_type(verb, dtype);
  verb.add_option("--batch", batch, "1 if left out")->type_name("N");
  verb.add_option("--heads", heads, "query heads; 1 if left out")->type_name("N");
  verb.add_option("--kv-heads", kv_heads, "as many as --heads if left out")->type_name("N");
  verb.add_option("--seq,--q-len", seq, "queries; 4096 if left out")->type_name("N");
  verb.add_option_function<std::string>(
          "--kv-seq,--kv-len", [this](const std::string& keys) { read_keys(keys); },
          "keys; as many as queries if left out; with --decode of each entry, or drawn up to N")
      ->type_name("N|N,...|random:N");
  verb.add_option("--d", d, "width of a head; 128 if left out")->type_name("N");
  verb.add_option("--dv", dv, "width of the values; as --d if left out")->type_name("N");
  exact.add_to(verb);
}

void BenchOptions::read_keys(std::string_view keys) {
  const auto number = [&](std::string_view word) {
    std::int64_t out = 0;
    const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), out);
    if (wrong != std::errc{} || end != word.data() + word.size())
      throw CLI::ValidationError("--kv-len", fmt::format("`{}` is not a number of keys", word));
    return out;
  };
  constexpr std::string_view random = "random:";
  if (keys.starts_with(random)) {
    kv_random = number(keys.substr(random.size()));
    return;
  }
  for (std::size_t from = 0; from <= keys.size();) {
    const std::size_t to = std::min(keys.find(',', from), keys.size());
    kv_lengths.push_back(number(keys.substr(from, to - from)));
    from = to + 1;
  }
  if (kv_lengths.size() > 1) return;
  kv_seq = kv_lengths[0];
  kv_lengths.clear();
}

void BenchOptions::settle(bool has_seq) {
  if (decode && !has_seq) seq = 1;
  if (packed()) {
    batch = static_cast<std::int64_t>(lengths.size());
    seq = *std::ranges::max_element(lengths);
    kv_seq.reset();
  }
  if (kv_random) {
    std::mt19937 dice(7);
    for (std::int64_t b = 0; b < batch; ++b)
      kv_lengths.push_back(std::uniform_int_distribution(std::min(seq, *kv_random), *kv_random)(dice));
  }
  if (!kv_lengths.empty()) {
    batch = static_cast<std::int64_t>(kv_lengths.size());
    kv_seq = *std::ranges::max_element(kv_lengths);
  }
  const std::int64_t least = kv_lengths.empty() ? of_kv_seq() : *std::ranges::min_element(kv_lengths);
  if (decode && least < seq)
    throw Error("bad-size", fmt::format("{} queries cannot be the last of {} keys", seq, least), {.name = "--kv-len"},
                "a decoder's queries are the last positions of their entry", "give it more keys, or fewer queries");
  check_products();
}

std::string BenchOptions::lengths_text() const {
  if (packed()) return fmt::format("S={} packed", fmt::join(lengths, "+"));
  const auto [least, most] = std::ranges::minmax(kv_lengths.empty() ? std::vector{of_kv_seq()} : kv_lengths);
  return fmt::format("S={}x{}{}", seq, least == most ? fmt::to_string(most) : fmt::format("{}…{}", least, most),
                     page_size ? fmt::format(", pages of {},", *page_size) : "");
}

void BenchOptions::add_verb_options_to(CLI::App& verb) {
  progress.add_to(verb);
  verb.add_option("--target", target, "what computes")->type_name("auto|cpu|cuda");
  verb.add_option("--threads", threads, "how many threads; several are measured one after the other")
      ->type_name("N...");
  verb.add_option("--seconds", seconds, "how long to measure each row, at least; 1 if left out")->type_name("X");
  verb.add_flag("--backward", backward, "the gradients of q, k and v, given what the forward gave");
  verb.add_flag("--step", step, "a training step's: the forward, and then the gradients");
  verb.add_flag("--grads", grads, "with these: also the gradients of the captured tensors");
  verb.add_option("--kernel", kernel, "of a GPU: measure this kernel, with these members of its tile changed")
      ->type_name("NAME[:m=N,n=N,...]");
  verb.add_option("--cache-dtype", cache_dtype, "of k and v, as a cache holds them; that of q if left out")
      ->type_name("e4m3");
  verb.add_option("--cover", cover,
                  "on a GPU: tiles are listed by each call, or once before, as for a model's layers; each if left out")
      ->type_name("each|once");
  verb.add_option(
          "--lengths", lengths,
          "on a GPU: packed sequences of so many queries and keys each, in place of --batch, --seq and --kv-seq")
      ->type_name("N,...")
      ->delimiter(',');
  verb.add_flag("--decode", decode,
                "a decoder's step: queries, one if --seq is left out, are the last positions; GB/s of keys and values");
  verb.add_option("--page-size", page_size, "with --decode: a paged KV cache of N keys a page, in random order")
      ->type_name("N");
  verb.add_option(
          "--starts", starts,
          "where the starts of packed sequences are: the host does not wait for those on a device; host if left out")
      ->type_name("host|device");
  verb.add_option("--graph", graph,
                  "on a GPU: forwards are captured, N in a row as one CUDA graph, and measured by their mean")
      ->type_name("N");
  verb.add_flag("--paced", paced, "on a GPU: measure all rows once for each line that comes in, until there are none");
  verb.add_option("--save", save, "add the results to those of this name, or to this file of JSON lines")
      ->type_name("NAME|FILE.jsonl")
      ->group("History");
  verb.add_option("--compare", compare, "how much faster this is than the saved results")
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
    throw Error("bad-kernel", "the kernel that is asked for cannot take this call", {.name = out.variant.text()},
                o.has_backward() ? "it computes a forward" : "it computes a backward",
                o.has_backward() ? "name one of a backward, or leave --backward out" : "add --backward");
  return out;
}

}  // namespace attune::tools
