// tools/measure/bench.cpp — attune bench: how fast an engine is on this machine, and the machine's peak
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
#include "tools/measure/bench.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {

void BenchOptions::check() const {
  require_word("--target", target, std::array<std::string, 3>{"auto", "cpu", "cuda"});
  require_word("--cover", cover.value_or("each"), std::array<std::string, 2>{"each", "once"});
  require_word("--starts", starts.value_or("host"), std::array<std::string, 2>{"host", "device"});
  if (step && backward) throw misused("--step", "--backward is a part of it", "leave one of them out");
  if (grads && !has_backward())
    throw misused("--grads", "a forward has no gradients", "add --backward or --step, or leave it out");
  if (cover && direction() == Direction::backward)
    throw misused("--cover", "a cover is for forwards; a backward lists its own tiles",
                  "leave it out, or write --step");
  if (starts && !packed())
    throw misused("--starts", "it sets where the starts of packed sequences are", "add --lengths, or leave it out");
  if (graph && has_backward())
    throw misused("--graph", "graphs of forwards are measured", "leave it out, or measure a forward");
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
  text.add_to(verb);
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
    if (given) throw needs_gpu(option);
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

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Result {
  std::string row, mod;
  int threads = 1;
  Times times{};
  double flop = 0, peak = 0, first_call = 0;
  double bytes = 0;  ///< of keys and values, of a decoder's step
  runtime::Stages stages{};

  double gflops(double seconds) const { return flop / seconds / 1e9; }
  double percent(double seconds) const { return 100 * gflops(seconds) / (peak * threads); }
};

Json json_of(const Result& r, const BenchOptions& o) {
  const double best = r.times.best(), median = r.times.median();
  Json line{{"row", r.row}, {"mod", r.mod}, {"direction", std::string(name_of(o.direction()))}};
  line.update(o.shape());
  line.update({{"isa", std::string(codegen::name_of(runtime::cpu::isa()))},
               {"threads", r.threads},
               {"runs", r.times.all.size()},
               {"seconds", r.times.json()},
               {"gflops", {{"best", r.gflops(best)}, {"median", r.gflops(median)}}},
               {"peak_gflops_one_thread", r.peak},
               {"percent_of_peak", {{"best", r.percent(best)}, {"median", r.percent(median)}}},
               {"stages", {{"visits", r.stages.visits}, {"pack", r.stages.pack}, {"attend", r.stages.attend}}},
               {"first_call_seconds", r.first_call}});
  if (o.decode)
    line.update(
        {{"kv_bytes", r.bytes}, {"gb_s", {{"best", r.bytes / best / 1e9}, {"median", r.bytes / median / 1e9}}}});
  return line;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& o) : o_(o), history_(o.save, o.compare), type_(o.type()), forward_(o, data_) {
    if (o.has_backward()) backward_ = BackwardTensors(o, data_);
  }

  void operator()() {
    const std::vector<Case> cases = bench_cases(o_, data_);
    check_positions(cases, o_);
    progress_.emplace(o_.progress.style(), "bench", cases.size() * o_.threads.size());
    for (const Case& one : cases) measure(one);
    progress_.reset();
  }

 private:
  using Direction = BenchOptions::Direction;

  void header() const {
    print_out("{} {}, B={} H={}/{} {} D={}/{}, {}; % peak: of the multiply-adds of the same number of threads, "
              "measured in the same run\n",
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
      std::vector<double>& times = r.times.all;
      std::vector<double> peaks;
      for (start = Clock::now(); times.size() < 5 || seconds_since(start) < o_.seconds;) {
        // The peak is measured between calls, because the processor's clock varies over time.
        peaks.push_back(runtime::cpu::peak_gflops(type_));
        runtime::Stages stages;
        const auto begun = Clock::now();
        once(one.attention, calls, memory.resources, stages);
        times.push_back(seconds_since(begun));
        if (times.back() <= *std::min_element(times.begin(), times.end())) r.stages = stages;
      }
      std::sort(times.begin(), times.end());
      r.peak = *std::max_element(peaks.begin(), peaks.end());
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
    history_.tell(json_of(r, o_), o_.json, [&] {
      if (!std::exchange(header_stands_, true)) header();
      const double best = r.times.best(), median = r.times.median();
      print_out("{:<10} {:>7} {:>10.3f} {:>10.3f} {:>9.1f} {:>7.1f} {:>9.1f} {:>9.1f}{}\n", r.row, r.threads,
                best * 1e3, median * 1e3, r.gflops(best), r.percent(best), r.percent(median), r.first_call * 1e3,
                o_.decode ? fmt::format(" {:>9.1f}", r.bytes / median / 1e9) : "");
    });
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

void add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App& verb = *app.add_subcommand("bench", "how fast attention is on this machine, in percent of its peak");
  o->add_to(verb);
  o->add_verb_options_to(verb);
  verb.footer(
      "Measures known attentions, or your own, as a share of the machine's peak. Only the "
      "pairs that the mask keeps count as operations.\n"
      "\n"
      "With --save each result is saved as a line of JSON, with the machine, the date, the command, and attune's "
      "version and commit; a name is a file of the folder attune/bench below XDG_STATE_HOME, or below .local/state at "
      "home. With --compare the median is compared with that of saved results of the same mod, sizes and engine. The "
      "spread is the range that the tenth and ninetieth percentiles of both allow; a difference within it is called "
      "noise.\n"
      "Examples:\n"
      "  attune bench --row causal --d 64 --seq 512 --threads 1 2 --seconds 0.1\n"
      "  attune bench --score '30.0f * tanh(s / 30.0f)' --mask 'q - kv < 512' --seq 512 --seconds 0.1 --backward "
      "--json\n"
      "  attune bench --decode --row causal --batch 4 --kv-len random:512 --page-size 16 --seconds 0.1\n"
      "  attune bench --row causal --seq 512 --seconds 0.1 --save before.jsonl\n"
      "  attune bench --row causal --seq 512 --seconds 0.1 --compare before.jsonl\n"
      "Environment:\n"
      "  XDG_STATE_HOME     where results are kept by a name");
  verb.callback([o, &verb] {
    o->check();
    tell_doubts(o->text);
    o->settle(verb.count("--seq") > 0);
    if (o->target == "cuda") return bench_cuda(*o);
    o->check_for_host();
    Bench{*o}();
  });
}

}  // namespace attune::tools
