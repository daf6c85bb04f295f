// tools/measure/tune.cpp — attune tune: finds the fastest kernel for an attention on this machine's GPU, and remembers
// it
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <unistd.h>

#include "codegen/cuda/headers.h"
#include "compiler/lower.h"
#include "runtime/attention/tools.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/cuda/kernels/tuned.h"
#include "runtime/machine/tensor.h"
#include "runtime/machine/threads.h"
#include "runtime/platform/memory.h"
#include "tools/measure/bench.h"
#include "tools/measure/tune.h"
#include "tools/output/output.h"
#include "tools/output/progress.h"
#include "tools/verbs.h"

namespace attune::tools {

std::vector<Trial> search(const codegen::Variant& usual, const Grounds& grounds) {
  constexpr std::size_t starts = 3;
  constexpr double gain = 1.01;
  std::vector<Trial> all;
  std::set<codegen::Variant> known;
  // Returns the best of those that were not measured before.
  const auto measure = [&](const std::vector<codegen::Variant>& variants) {
    Trial best;
    for (const codegen::Variant& variant : variants) {
      if (!known.insert(variant).second) continue;
      all.push_back(grounds.measure(variant));
      if (all.back().speed > best.speed) best = all.back();
    }
    return best;
  };
  const auto fastest_first = [&] { std::ranges::stable_sort(all, std::greater{}, &Trial::speed); };
  measure({usual});
  measure(grounds.tiles(usual));
  fastest_first();
  std::vector<Trial> from(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(starts, all.size())));
  for (Trial& here : from)
    while (here.speed > 0) {
      const Trial next = measure(grounds.ways(here.variant));
      if (next.speed < here.speed * gain) break;
      here = next;
    }
  fastest_first();
  return all;
}

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using codegen::Preference, codegen::Variant;

struct TuneOptions {
  BenchOptions bench;  ///< its seconds are for each kernel
  double limit = 540;
  bool dry = false;
};

/// 16384 tokens; heads times width is 2048.
BenchOptions standard(std::string row, std::int64_t d, std::int64_t seq) {
  BenchOptions o;
  o.rows = {std::move(row)};
  o.dtype = "bf16";
  o.batch = 16384 / seq;
  o.heads = 2048 / d;
  o.seq = seq;
  o.d = d;
  return o;
}

/// The rows tuned by default, one for each common kind of call.
std::vector<BenchOptions> standard_rows() {
  std::vector<BenchOptions> out;
  for (const int d : {128, 64, 256})
    for (const int seq : {8192, 2048, 1024})
      for (const char* row : {"causal", "full"}) out.push_back(standard(row, d, seq));
  for (const char* row : {"alibi", "softcap", "relative", "window", "document", "prefix"})
    out.push_back(standard(row, 128, 8192));
  return out;
}

/// True if results differ only by rounding, for outputs around 1.
bool same(const Tensor& a, const Tensor& b) {
  double difference = 0, size = 0;
  const std::int64_t step = std::max<std::int64_t>(a.size() / 500'009, 1);  // about half a million of them
  for (std::int64_t i = 0; i < a.size(); i += step) {
    const double x = runtime::load(a, i), y = runtime::load(b, i);
    difference += (x - y) * (x - y);
    size += y * y;
  }
  return difference <= 1e-4 * size;  // 1 in 100: bf16 is accurate to 1 in 500
}

/// Progress on stderr while kernels are tried: a bar over all attentions, or a line for each kernel.
class Trials {
 public:
  Trials(Progress::Style style, std::size_t attentions)
      : lines_(style == Progress::Style::plain), bar_(lines_ ? Progress::Style::none : style, "tune", attentions),
        attentions_(attentions) {}

  void say(const std::string& text) const {
    if (!lines_) return;
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }
  /// The number of kernels that a search will try is unknown: after eight, half of an attention's share counts as done.
  void tried() {
    ++kernels_;
    const double here = static_cast<double>(kernels_) / static_cast<double>(kernels_ + 8);
    bar_.at((static_cast<double>(done_) + here) / static_cast<double>(attentions_));
  }
  void next(const std::string& name) {
    ++done_;
    kernels_ = 0;
    bar_.step(name);
  }
  void wipe() { bar_.wipe(); }

 private:
  bool lines_;
  Progress bar_;
  std::size_t attentions_, done_ = 0, kernels_ = 0;
};

class Tuner {
 public:
  Tuner(const TuneOptions& o, const BenchOptions& shape, Trials& trials)
      : o_(o), shape_(shape), trials_(trials), data_(Device::cuda()), tensors_(shape, data_),
        one_(std::move(bench_cases(shape, data_).at(0))), call_(runtime::call_spec(one_.attention, tensors_.call())),
        lowered_(compiler::lower(one_.attention)), parts_(codegen::parts_of(lowered_, call_, codegen::Way::forward)),
        key_(runtime::cuda::tuned_key(runtime::cuda::device_name(data_.device().index), parts_, call_)) {
    Data host;
    const std::vector<Case> on_host = bench_cases(shape, host);
    check_positions(on_host, shape);
    flop_ = forward_flop(on_host.at(0), shape);
    usual_ = usual();
    runtime::run(one_.attention, tensors_.call(), &usual_);
    expected_ = moved(tensors_.o, Device::cpu());
  }

  void operator()() {
    trials_.say(fmt::format("{}, {}{} d={}/{} seq={} batch={} heads={}: {}, {}, {}\n", one_.name, shape_.dtype,
                            shape_.exact_text(), shape_.d, shape_.of_dv(), shape_.seq, shape_.batch, shape_.heads,
                            name_of(key_.kind.cover), name_of(key_.kind.mod), name_of(key_.kind.length)));
    const auto tiles = [&](const Variant& v) { return compiled(other_tiles(call_.spec, parts_.facts, v)); };
    const auto ways = [&](const Variant& v) { return compiled(other_ways(call_.spec, parts_.facts, v)); };
    std::vector<Trial> trials = search(usual_.variant, {tiles, ways, [&](const Variant& v) { return measured(v); }});
    settle(trials);
  }

 private:
  /// The kernel chosen without remembered results, or the one that the user named.
  Preference usual() const {
    Preference out;
    if (o_.bench.kernel) {
      out = {codegen::variant(*o_.bench.kernel), true, ""};
      out.variant = codegen::variant_of(choose(call_.spec, parts_.facts, key_.kind, &out).choices[0].plan);
      return out;
    }
    for (const codegen::KernelChoice& choice : choose(call_.spec, parts_.facts, key_.kind).choices) {
      out = {codegen::variant_of(choice.plan), true, ""};
      if (runtime::stories(one_.attention, tensors_.call(), &out).front().flaw.empty()) break;
    }
    return out;
  }

  /// On all CPU threads: each compilation takes a second or two.
  std::vector<Variant> compiled(std::vector<Variant> variants) const {
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t i = next++; i < variants.size(); i = next++) {
        codegen::CallSpec one = call_;
        one.preference = {variants[i], true, ""};
        runtime::cuda::consider(parts_, one, codegen::kernels());
      }
    };
    runtime::on_threads(std::thread::hardware_concurrency(), work);
    return variants;
  }

  double median_seconds(const Preference& preference, double seconds) {
    std::vector<double> all = runtime::cuda::times(data_.device().index, seconds,
                                                   [&] { runtime::run(one_.attention, tensors_.call(), &preference); });
    std::ranges::sort(all);
    return all[all.size() / 2];
  }

  Trial measured(const Variant& variant) {
    trials_.say(fmt::format("  {:<90} ", variant.text()));
    // A deadlock between warpgroups would hang the device.
    alarm(60);
    Trial out{variant, 0, {}};
    const Preference one{variant, true, ""};
    if (variant != usual_.variant) out.wrong = runtime::stories(one_.attention, tensors_.call(), &one).front().flaw;
    if (out.wrong.empty()) {
      runtime::run(one_.attention, tensors_.call(), &one);
      if (!same(moved(tensors_.o, Device::cpu()).tensor, expected_.tensor)) out.wrong = "its results differ";
    }
    if (out.wrong.empty()) {
      const double before = median_seconds(usual_, o_.bench.seconds), own = median_seconds(one, o_.bench.seconds);
      out.speed = before / own;
      trials_.say(fmt::format("{:7.1f} TFLOP/s, {:.3f} of the default\n", flop_ / own / 1e12, out.speed));
    } else {
      trials_.say(out.wrong + "\n");
    }
    trials_.tried();
    alarm(0);
    return out;
  }

  /// Measures the fastest few and the usual one again, in turns, because the device's clock varies.
  void settle(const std::vector<Trial>& trials) {
    constexpr int rounds = 5;
    std::vector<Preference> last{usual_};
    for (const Trial& t : trials)
      if (t.speed > 0 && t.variant != usual_.variant && last.size() < 4) last.push_back({t.variant, true, ""});
    std::vector<std::vector<double>> seconds(last.size());
    for (int round = 0; round < rounds; ++round)
      for (std::size_t i = 0; i < last.size(); ++i) seconds[i].push_back(median_seconds(last[i], 2 * o_.bench.seconds));
    std::size_t best = 0;
    for (std::vector<double>& s : seconds) std::ranges::sort(s);
    const auto median = [&](std::size_t i) { return seconds[i][rounds / 2]; };
    // A gain of less than 1 in 100 counts as luck.
    for (std::size_t i = 1; i < last.size(); ++i)
      if (median(i) * 1.01 < median(0) && median(i) < median(best)) best = i;
    const runtime::cuda::Tuned row{.variant = last[best].variant,
                                   .tflops = flop_ / median(best) / 1e12,
                                   .usual_tflops = flop_ / median(0) / 1e12,
                                   .date = timestamp().substr(0, 10),
                                   .kernels = std::string(codegen::headers_digest())};
    const std::filesystem::path path = runtime::cuda::tuned_path();
    // A kernel that the user named may not be the fastest. Only results of dense and packed calls are stored: a cache's
    // tile would be found by dense calls of the same kind and widths.
    const bool remembers = !o_.dry && !o_.bench.kernel && !call_.spec.sharing.decode() && !call_.spec.cache.per_entry;
    if (remembers) runtime::cuda::remember(path, key_, row);
    tell(trials, row, remembers ? path.string() : "");
  }

  void tell(const std::vector<Trial>& trials, const runtime::cuda::Tuned& row, const std::string& path) const {
    trials_.wipe();
    if (!o_.bench.json) {
      print_out("{:<9} d={:<4} seq={:<6} {:>7.1f} TFLOP/s, {:.3f} of {:.1f}: {}{}\n", one_.name, shape_.d, shape_.seq,
                row.tflops, row.tflops / row.usual_tflops, row.usual_tflops, row.variant.text(),
                row.variant == usual_.variant ? ", the default" : "");
    } else {
      Json line{{"row", one_.name}};
      line.update(shape_.shape());
      line.update({{"device", key_.device},
                   {"cover", std::string(name_of(key_.kind.cover))},
                   {"mod", std::string(name_of(key_.kind.mod))},
                   {"length", std::string(name_of(key_.kind.length))},
                   {"kernel", row.variant.text()},
                   {"tflops", row.tflops},
                   {"usual", {{"kernel", usual_.variant.text()}, {"tflops", row.usual_tflops}}},
                   {"remembered", path}});
      for (const Trial& t : trials)
        line["trials"].push_back({{"kernel", t.variant.text()}, {"speed", t.speed}, {"wrong", t.wrong}});
      write_json(line);
    }
    flush_out();
  }

  const TuneOptions& o_;
  const BenchOptions& shape_;
  Trials& trials_;
  Data data_;
  ForwardTensors tensors_;
  Case one_;
  codegen::CallSpec call_;
  compiler::LoweredMod lowered_;
  codegen::GpuParts parts_;
  runtime::cuda::TunedKey key_;
  double flop_ = 0;
  Preference usual_;
  Owned expected_;
};

void tune(const TuneOptions& o, bool own) {
  const auto start = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<BenchOptions> shapes;
  if (!own) {
    shapes = standard_rows();
    for (BenchOptions& shape : shapes) shape.exact = o.bench.exact;
  } else if (o.bench.rows.size() < 2) {
    shapes = {o.bench};
  } else {
    for (const std::string& row : o.bench.rows) {
      shapes.push_back(o.bench);
      shapes.back().rows = {row};
    }
  }
  Trials trials(o.bench.progress.style(), shapes.size());
  double longest = 0;
  for (const BenchOptions& shape : shapes) {
    const double begun = passed();
    if (begun + longest > o.limit) {
      trials.wipe();
      fmt::print(stderr, "left out because of the limit of {} s: {} d={} seq={}\n", o.limit, shape.rows[0], shape.d,
                 shape.seq);
      continue;
    }
    Tuner{o, shape, trials}();
    trials.next(shape.rows.empty() ? "own" : shape.rows[0]);
    longest = std::max(longest, passed() - begun);
  }
}

}  // namespace

void add_tune(CLI::App& app) {
  auto o = std::make_shared<TuneOptions>();
  o->bench.dtype = "bf16";
  o->bench.seconds = 0.05;
  CLI::App& verb = *app.add_subcommand("tune", "finds and saves the fastest kernel for an attention on this GPU");
  o->bench.add_to(verb);
  o->bench.progress.add_to(verb);
  verb.add_option("--seconds", o->bench.seconds, "how long to measure each kernel, at least; 0.05 if left out")
      ->type_name("X");
  verb.add_option("--limit", o->limit, "seconds after which no further attention is tuned; 540 if left out")
      ->type_name("X");
  verb.add_option("--kernel", o->bench.kernel, "variants of this kernel; saves nothing")
      ->type_name("NAME[:m=N,n=N,...]");
  verb.add_flag("--dry", o->dry, "save nothing");
  verb.add_flag("--json", o->bench.json, "one line of JSON for each attention");
  verb.footer(
      "Measures other tiles of the kernel that would be chosen, alternating with it and checked against its results, "
      "and keeps the fastest for calls of the same kind, type and widths on this device: see docs/gpu.md. For calls "
      "over a cache (--decode) it saves nothing. Without a row or an expression, it tunes the most common attentions.\n"
      "Examples:\n  attune tune --row causal --d 128 --heads 16 --seq 8192");
  verb.callback([o, &verb] {
    o->bench.check();
    o->bench.settle(verb.count("--seq") > 0);
    require_seconds("--limit", o->limit);
    const TextOptions& text = o->bench.text;
    tell_doubts(text);
    const bool own = !o->bench.rows.empty() || text.given();
    tune(*o, own);
  });
}

}  // namespace attune::tools
