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
      std::vector<double> times;
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
