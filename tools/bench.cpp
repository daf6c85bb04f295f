// tools/bench.cpp — attune bench: how fast an engine is on this machine, and the machine's peak
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "compiler/lower.h"
#include "runtime/attention/tools.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/peak.h"
#include "tools/bench.h"
#include "tools/history.h"
#include "tools/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Result {
  std::string row, mod;
  int threads = 1;
  double best = 0, median = 0, p10 = 0, p90 = 0;  ///< seconds
  std::size_t runs = 0;
  double flop = 0, peak = 0, first_call = 0;
  double bytes = 0;  ///< of keys and values, of a decoder's step
  runtime::Stages stages{};

  double gflops(double seconds) const { return flop / seconds / 1e9; }
};

Json json_of(const Result& r, const BenchOptions& o) {
  Json line{{"row", r.row}, {"mod", r.mod}, {"direction", std::string(name_of(o.direction()))}};
  line.update(o.shape());
  line.update({{"isa", std::string(codegen::name_of(runtime::cpu::isa()))},
               {"threads", r.threads},
               {"runs", r.runs},
               {"seconds", {{"best", r.best}, {"p10", r.p10}, {"median", r.median}, {"p90", r.p90}}},
               {"gflops", {{"best", r.gflops(r.best)}, {"median", r.gflops(r.median)}}},
               {"peak_gflops_one_thread", r.peak},
               {"percent_of_peak",
                {{"best", 100 * r.gflops(r.best) / (r.peak * r.threads)},
                 {"median", 100 * r.gflops(r.median) / (r.peak * r.threads)}}},
               {"stages", {{"visits", r.stages.visits}, {"pack", r.stages.pack}, {"attend", r.stages.attend}}},
               {"first_call_seconds", r.first_call}});
  if (o.decode)
    line.update(
        {{"kv_bytes", r.bytes}, {"gb_s", {{"best", r.bytes / r.best / 1e9}, {"median", r.bytes / r.median / 1e9}}}});
  return line;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& o) : o_(o), history_(o.save, o.compare), type_(o.type()), forward_(o, data_) {
    if (o.has_backward()) backward_ = BackwardTensors(o, data_);
  }

  void operator()() {
    const std::vector<Case> cases = bench_cases(o_, data_);
    progress_.emplace(o_.progress.style(), "bench", cases.size() * o_.threads.size());
    for (const Case& one : cases) measure(one);
    progress_.reset();
  }

 private:
  using Direction = BenchOptions::Direction;

  void header() const {
    print_out("{} {}, B={} H={}/{} {} D={}/{}, {}; % peak: of so many threads' multiply-adds in the same run\n",
              o_.types_text(), name_of(o_.direction()), o_.batch, o_.heads, o_.of_kv_heads(), o_.lengths_text(), o_.d,
              o_.of_dv(), codegen::name_of(runtime::cpu::isa()));
    print_out("{:<10} {:>7} {:>10} {:>10} {:>9} {:>7} {:>9} {:>9}{}\n", "row", "threads", "best ms", "median ms",
              "GFLOP/s", "% peak", "% median", "first ms", o_.decode ? fmt::format(" {:>9}", "GB/s") : "");
  }

  /// The calls of a row, and the gradients that they write.
  struct Calls {
    Calls(const Case& one, const Bench& bench)
        : forward(bench.forward_.call()), backward(bench.backward_.call(bench.forward_)) {
      if (bench.o_.grads) gradients = CapturedGradients(one.attention, bench.data_);
      backward.captured = gradients.captured;
    }
    Forward forward;
    Backward backward;
    CapturedGradients gradients;
  };

  void once(const Attention& attention, const Calls& calls, const Resources& with, runtime::Stages& stages) const {
    if (o_.direction() != Direction::backward) runtime::run(attention, calls.forward, with, Line{}, &stages);
    if (o_.has_backward()) runtime::run(attention, calls.backward, with, Line{}, &stages);
  }

  void measure(const Case& one) {
    const double flop = flop_of(one, o_), bytes = o_.decode ? kept_bytes(one, o_) : 0;
    const Calls calls(one, *this);
    if (o_.direction() == Direction::backward) one.attention.run(calls.forward);
    for (const int threads : o_.threads) {
      const Resources with{.executor = {.workers = threads}};
      Result r{.row = one.name, .mod = mod_digest(one), .threads = threads};
      r.flop = flop;
      r.bytes = bytes;
      auto start = Clock::now();
      once(one.attention, calls, with, r.stages);
      r.first_call = seconds_since(start);
      const Memory memory(one, calls, o_, with);
      std::vector<double> times;
      std::vector<double> peaks;
      for (start = Clock::now(); times.size() < 5 || seconds_since(start) < o_.seconds;) {
        // The peak is measured in between, because the processor's clock changes meanwhile.
        peaks.push_back(runtime::cpu::peak_gflops(type_));
        runtime::Stages stages;
        const auto begun = Clock::now();
        once(one.attention, calls, memory.resources, stages);
        times.push_back(seconds_since(begun));
        if (times.back() <= *std::min_element(times.begin(), times.end())) r.stages = stages;
      }
      std::sort(times.begin(), times.end());
      r.peak = *std::max_element(peaks.begin(), peaks.end());
      r.runs = times.size();
      r.best = times.front();
      r.median = times[times.size() / 2];
      r.p10 = times[times.size() / 10];
      r.p90 = times[times.size() * 9 / 10];
      progress_->wipe();
      print(r);
      progress_->step(r.row);
    }
  }

  /// The workspace, allocated once instead of at every call.
  struct Memory {
    Memory(const Case& one, const Calls& calls, const BenchOptions& o, Resources with) : resources(std::move(with)) {
      std::size_t size = 0;
      if (o.direction() != Direction::backward) size = one.attention.workspace(calls.forward, resources);
      if (o.has_backward()) size = std::max(size, one.attention.workspace(calls.backward, resources));
      bytes.resize(size + 64);
      const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
      resources.workspace = std::span(bytes).subspan((64 - at % 64) % 64, size);
    }
    std::vector<std::byte> bytes;
    Resources resources;
  };
  void print(const Result& r) {
    Json line = json_of(r, o_);
    const std::optional<Json> compared = history_.note(line);
    if (o_.json) {
      if (compared) line["compared"] = *compared;
      write_json(line);
    } else {
      if (!std::exchange(header_stands_, true)) header();
      print_out("{:<10} {:>7} {:>10.3f} {:>10.3f} {:>9.1f} {:>7.1f} {:>9.1f} {:>9.1f}{}\n", r.row, r.threads,
                r.best * 1e3, r.median * 1e3, r.gflops(r.best), 100 * r.gflops(r.best) / (r.peak * r.threads),
                100 * r.gflops(r.median) / (r.peak * r.threads), r.first_call * 1e3,
                o_.decode ? fmt::format(" {:>9.1f}", r.bytes / r.median / 1e9) : "");
      if (compared) print_out("           {}\n", in_words(*compared));
    }
    flush_out();
  }

  const BenchOptions& o_;
  History history_;
  bool header_stands_ = false;
  std::optional<Progress> progress_;
  Data data_;
  DType type_;
  ForwardTensors forward_;
  BackwardTensors backward_;
};

}  // namespace

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
       {std::pair{"--pages", page.has_value()}, {"--kv-len", !kv_lengths.empty() || kv_random.has_value()}})
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
  require_word("--dtype", dtype, std::array<std::string, 4>{"f32", "f16", "bf16", "e4m3"});
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
                                      {"--pages", page.value_or(1)},
                                      {"--graph", graph.value_or(1)}})
    require_size(option, value, 1, compiler::max_length);
  for (const std::int64_t length : lengths) require_size("--lengths", length, 1, compiler::max_length);
  for (const std::int64_t length : kv_lengths) require_size("--kv-len", length, 1, compiler::max_length);
  for (const int n : threads) require_size("--threads", n, 1, std::numeric_limits<int>::max());
  require_seconds("--seconds", seconds);
  if (heads % of_kv_heads() != 0)
    throw Error("head-groups", fmt::format("{} query heads cannot share {} KV heads", heads, of_kv_heads()),
                {.name = fmt::format("--heads {} --kv-heads {}", heads, of_kv_heads())},
                "each KV head serves the same number of query heads", "make --heads a multiple of --kv-heads");
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
  verb.add_option("--dtype", dtype, "of q, k, v and o; with e4m3, o is bf16")->type_name("f32|f16|bf16|e4m3");
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
                     page ? fmt::format(", pages of {},", *page) : "");
}

void add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App& verb = *app.add_subcommand("bench", "how fast attention is on this machine, in percent of its peak");
  o->add_to(verb);
  o->progress.add_to(verb);
  verb.add_option("--target", o->target, "what computes")->type_name("auto|cpu|cuda");
  verb.add_option("--threads", o->threads, "how many threads; several are measured one after the other")
      ->type_name("N...");
  verb.add_option("--seconds", o->seconds, "how long to measure each row, at least; 1 if left out")->type_name("X");
  verb.add_flag("--backward", o->backward, "the gradients of q, k and v, given what the forward gave");
  verb.add_flag("--step", o->step, "a training step's: the forward, and then the gradients");
  verb.add_flag("--grads", o->grads, "with these: also the gradients of the captured tensors");
  verb.add_option("--kernel", o->kernel, "of a GPU: measure this kernel, with these members of its tile changed")
      ->type_name("NAME[:m=N,n=N,...]");
  verb.add_option("--cache-dtype", o->cache_dtype, "of k and v, as a cache holds them; that of q if left out")
      ->type_name("e4m3");
  verb.add_option("--cover", o->cover,
                  "on a GPU: tiles are listed by each call, or once before, as for a model's layers; each if left out")
      ->type_name("each|once");
  verb.add_option(
          "--lengths", o->lengths,
          "on a GPU: packed sequences of so many queries and keys each, in place of --batch, --seq and --kv-seq")
      ->type_name("N,...")
      ->delimiter(',');
  verb.add_flag("--decode", o->decode,
                "a decoder's step: queries, one if --seq is left out, are the last positions; GB/s of keys and values");
  verb.add_option("--pages", o->page, "with --decode: keys and values lie in pages of N keys, in random order")
      ->type_name("N");
  verb.add_option(
          "--starts", o->starts,
          "where the starts of packed sequences are: the host does not wait for those on a device; host if left out")
      ->type_name("host|device");
  verb.add_option("--graph", o->graph,
                  "on a GPU: forwards are captured, N in a row as one CUDA graph, and measured by their mean")
      ->type_name("N");
  verb.add_flag("--paced", o->paced,
                "on a GPU: measure all rows once for each line that comes in, until there are none");
  verb.add_option("--save", o->save, "add the results to those of this name, or to this file of JSON lines")
      ->type_name("NAME|FILE.jsonl")
      ->group("History");
  verb.add_option("--compare", o->compare, "how much faster this is than the saved results")
      ->type_name("NAME|FILE.jsonl")
      ->group("History");
  verb.add_flag("--json", o->json, "one line of JSON for each row");
  verb.footer(
      "Measures known attentions, or one of your own, and says what part of the machine's peak they reach. Only the "
      "pairs that the mask keeps count as operations.\n"
      "\n"
      "With --save each result is saved as a line of JSON, with the machine, the date, the command, and attune's "
      "version "
      "and commit; a name is a file of the folder attune/bench below XDG_STATE_HOME, or below .local/state at home. "
      "With "
      "--compare the median is compared with that of saved results of the same mod, sizes and engine. The spread is "
      "the range that the tenth and ninetieth percentiles of both allow; a difference within it is called noise.\n"
      "Examples:\n"
      "  attune bench --row causal --d 64 --seq 512 --threads 1 2 --seconds 0.1\n"
      "  attune bench --score '30.0f * tanh(s / 30.0f)' --mask 'q - kv < 512' --seq 512 --seconds 0.1 --backward "
      "--json\n"
      "  attune bench --decode --row causal --batch 4 --kv-len random:512 --pages 16 --seconds 0.1\n"
      "  attune bench --row causal --seq 512 --seconds 0.1 --save before.jsonl\n"
      "  attune bench --row causal --seq 512 --seconds 0.1 --compare before.jsonl\n"
      "Environment:\n"
      "  XDG_STATE_HOME     where results are kept by a name");
  verb.callback([o, &verb] {
    o->check();
    tell_doubts(o->text);
    o->settle(verb.count("--seq") > 0);
    if (o->target == "cuda") return bench_cuda(*o);
    for (const auto& [option, given] : {std::pair{"--kernel", o->kernel.has_value()},
                                        {"--exact", o->exact.word.has_value()},
                                        {"--cover", o->cover.has_value()},
                                        {"--lengths", o->packed()},
                                        {"--graph", o->graph.has_value()},
                                        {"--paced", o->paced}})
      if (given)
        throw Error("bad-usage", "the command line cannot be read", {.name = option}, "it is for kernels of a GPU",
                    "add --target cuda, or leave it out");
    Bench{*o}();
  });
}

}  // namespace attune::tools
