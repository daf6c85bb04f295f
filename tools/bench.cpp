// tools/bench.cpp — attune bench: how fast an engine is on this machine, beside the most the machine can do
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "compiler/lower.h"
#include "runtime/attention.h"
#include "runtime/cpu/peak.h"
#include "runtime/tensor.h"
#include "runtime/tiles.h"
#include "tools/text.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct BenchOptions {
  std::vector<std::string> rows;
  TextOptions text;
  std::string target = "auto", dtype = "f32";
  std::int64_t batch = 1, heads = 1, d = 128, seq = 4096;
  std::optional<std::int64_t> kv_heads, dv, kv_seq;
  std::vector<int> threads{1};
  double seconds = 1;
  bool backward = false, json = false;
};

/// An attention people run, by a name.
struct Row {
  std::string name, score, mask, meaning;
};
const std::array<Row, 8> known_rows{{
    {"full", "s", "true", "nothing but softmax(q k) v"},
    {"causal", "s", "kv <= q", "kv <= q"},
    {"alibi", "s + slope[h] * f32(kv - q)", "kv <= q", "causal, with ALiBi's slopes"},
    {"softcap", "30.0f * tanh(s / 30.0f)", "kv <= q", "causal, scores within 30"},
    {"document", "s", "kv <= q && doc[q] == doc[kv]", "causal, 12 documents"},
    {"window", "s", "kv <= q && q - kv < 1024", "causal, the last 1024 keys"},
    {"prefix", "s", "kv <= q || kv < 1024", "causal after a prefix of 1024 keys"},
    {"relative", "s + table[q - kv + kv_len]", "kv <= q", "causal, a learned bias by distance"},
}};

/// Numbers that stay the same from run to run. Random normal, as a model's are.
class Data {
 public:
  Owned normal(DType type, std::vector<std::int64_t> shape) {
    return fill(type, shape, [&](std::int64_t) { return static_cast<double>(normal_(dice_)); });
  }
  Owned fill(DType type, const std::vector<std::int64_t>& shape, const std::function<double(std::int64_t)>& value) {
    Owned out;
    out.memory = detail::allocate(Device::cpu(), type, shape);
    out.tensor = Tensor(out.memory.get(), type, shape);
    for (std::int64_t i = 0; i < out.tensor.size(); ++i) runtime::store(out.tensor, i, value(i));
    return out;
  }

 private:
  std::mt19937 dice_{7};
  std::normal_distribution<float> normal_;
};

DType dtype_of(const std::string& name) {
  return name == "f16" ? DType::f16 : name == "bf16" ? DType::bf16 : DType::f32;
}

struct Case {
  std::string name;
  Attention attention;
  std::vector<Owned> captures;
};

Case made(const Row& row, const BenchOptions& o, Data& data) {
  Case out{row.name, {}, {}};
  Text text;
  const std::int64_t kv = o.kv_seq.value_or(o.seq);
  const auto capture = [&](const char* name, Owned owned) {
    text.capture(name, owned.tensor);
    out.captures.push_back(std::move(owned));
  };
  if (row.score.find("slope") != std::string::npos)
    capture("slope", data.fill(DType::f32, {o.heads}, [&](std::int64_t h) {
      return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(o.heads));
    }));
  if (row.score.find("table") != std::string::npos) capture("table", data.normal(DType::f32, {o.seq + kv}));
  if (row.mask.find("doc") != std::string::npos) {
    const std::int64_t length = std::max(o.seq, kv);
    capture("doc",
            data.fill(DType::i32, {length}, [&](std::int64_t i) { return static_cast<double>(i * 12 / length); }));
  }
  out.attention = {.score = text.score(row.score), .mask = text.mask(row.mask)};
  return out;
}

/// A user's own expressions; captures given as a type alone hold random numbers, whole ones sorted ids.
Case made(const TextOptions& options, Data& data) {
  const auto filled = [&](DType type, std::span<const std::int64_t> extents) {
    const std::vector<std::int64_t> shape(extents.begin(), extents.end());
    if (type < DType::i64) return data.normal(type, shape);
    const std::int64_t n = Tensor(nullptr, type, shape).size();
    return data.fill(type, shape, [&](std::int64_t i) { return static_cast<double>(i * 12 / n); });
  };
  TextAttention text = build(options, Captures::FilesOrTypes, filled);
  Case out{"own", text.attention, {}};
  for (auto& [name, owned] : text.captures) out.captures.push_back(std::move(owned));
  return out;
}

/// Pairs that the mask keeps, over all heads: what the flop are counted for.
double live_pairs(const Attention& attention, const BenchOptions& o) {
  const compiler::Traced traced = compiler::lower(attention);
  const compiler::Cover cover = compiler::cover(traced.mod.mask, traced.mod.signature(), traced.mod.score);
  const std::int64_t kv = o.kv_seq.value_or(o.seq);
  const runtime::Extent extent{.batch = static_cast<std::int32_t>(o.batch),
                               .heads = static_cast<std::int32_t>(o.heads),
                               .q_len = static_cast<std::int32_t>(o.seq),
                               .kv_len = static_cast<std::int32_t>(kv)};
  const runtime::Tiles tiles(traced, cover);
  if (const auto live = tiles.live(extent)) return static_cast<double>(*live);
  const runtime::TileLists lists = tiles.lists(extent);
  return static_cast<double>(lists.some + lists.all) * extent.tile_q * extent.tile_kv;
}

struct Result {
  std::string row;
  int threads = 1;
  double best = 0, median = 0, p10 = 0, p90 = 0;  ///< seconds
  std::size_t runs = 0;
  double flop = 0, peak = 0, first_call = 0;
  runtime::cpu::Stages stages{};

  double gflops(double seconds) const { return flop / seconds / 1e9; }
};

Json json_of(const Result& r, const BenchOptions& o) {
  return {{"row", r.row},
          {"direction", o.backward ? "backward" : "forward"},
          {"dtype", o.dtype},
          {"batch", o.batch},
          {"heads", o.heads},
          {"kv_heads", o.kv_heads.value_or(o.heads)},
          {"seq", o.seq},
          {"kv_seq", o.kv_seq.value_or(o.seq)},
          {"d", o.d},
          {"dv", o.dv.value_or(o.d)},
          {"isa", std::string(codegen::name_of(runtime::cpu::isa()))},
          {"threads", r.threads},
          {"runs", r.runs},
          {"seconds", {{"best", r.best}, {"p10", r.p10}, {"median", r.median}, {"p90", r.p90}}},
          {"gflops", {{"best", r.gflops(r.best)}, {"median", r.gflops(r.median)}}},
          {"peak_gflops_one_thread", r.peak},
          {"percent_of_peak",
           {{"best", 100 * r.gflops(r.best) / (r.peak * r.threads)},
            {"median", 100 * r.gflops(r.median) / (r.peak * r.threads)}}},
          {"stages", {{"visits", r.stages.visits}, {"pack", r.stages.pack}, {"attend", r.stages.attend}}},
          {"first_call_seconds", r.first_call}};
}

class Bench {
 public:
  explicit Bench(const BenchOptions& o)
      : o_(o), type_(dtype_of(o.dtype)), q_(data_.normal(type_, {o.batch, o.heads, o.seq, o.d})),
        k_(data_.normal(type_, {o.batch, kv_heads(), kv_seq(), o.d})),
        v_(data_.normal(type_, {o.batch, kv_heads(), kv_seq(), dv()})),
        o_out_(data_.fill(type_, {o.batch, o.heads, o.seq, dv()}, [](std::int64_t) { return 0.0; })),
        lse_(data_.fill(DType::f32, {o.batch, o.heads, o.seq}, [](std::int64_t) { return 0.0; })) {
    if (!o.backward) return;
    grad_o_ = data_.normal(type_, {o.batch, o.heads, o.seq, dv()});
    dq_ = data_.normal(type_, {o.batch, o.heads, o.seq, o.d});
    dk_ = data_.normal(type_, {o.batch, kv_heads(), kv_seq(), o.d});
    dv_ = data_.normal(type_, {o.batch, kv_heads(), kv_seq(), dv()});
  }

  void operator()() {
    if (o_.text.score || o_.text.mask || o_.text.prob || o_.text.sink)
      measure(made(o_.text, data_));
    else
      for (const Row& row : known_rows)
        if (o_.rows.empty() || std::find(o_.rows.begin(), o_.rows.end(), row.name) != o_.rows.end())
          measure(made(row, o_, data_));
  }

 private:
  std::int64_t kv_heads() const { return o_.kv_heads.value_or(o_.heads); }
  std::int64_t kv_seq() const { return o_.kv_seq.value_or(o_.seq); }
  std::int64_t dv() const { return o_.dv.value_or(o_.d); }

  void header() const {
    fmt::print("{} {}, B={} H={}/{} S={}x{} D={}/{}, {}; % peak: of so many threads' multiply-adds in the same run\n",
               o_.dtype, o_.backward ? "backward" : "forward", o_.batch, o_.heads, kv_heads(), o_.seq, kv_seq(), o_.d,
               dv(), codegen::name_of(runtime::cpu::isa()));
    fmt::print("{:<10} {:>7} {:>10} {:>10} {:>9} {:>7} {:>9} {:>9}\n", "row", "threads", "best ms", "median ms",
               "GFLOP/s", "% peak", "% median", "first ms");
  }

  void once(const Attention& attention, const Resources& with, runtime::cpu::Stages& stages) const {
    if (!o_.backward)
      return runtime::run(
          attention, Forward{.q = q_.tensor, .k = k_.tensor, .v = v_.tensor, .o = o_out_.tensor, .lse = lse_.tensor},
          with, Line{}, &stages);
    Backward call{.q = q_.tensor, .k = k_.tensor, .v = v_.tensor, .grad_o = grad_o_.tensor};
    call.o = o_out_.tensor;
    call.lse = lse_.tensor;
    call.dq = dq_.tensor;
    call.dk = dk_.tensor;
    call.dv = dv_.tensor;
    runtime::run(attention, call, with, Line{}, &stages);
  }

  void measure(const Case& one) {
    const double forward_flop = live_pairs(one.attention, o_) * 2 * static_cast<double>(o_.d + dv());
    if (o_.backward)
      one.attention.run({.q = q_.tensor, .k = k_.tensor, .v = v_.tensor, .o = o_out_.tensor, .lse = lse_.tensor});
    for (const int threads : o_.threads) {
      const Resources with{.executor = {.workers = threads}};
      Result r{.row = one.name, .threads = threads};
      // Five products against two.
      r.flop = o_.backward ? forward_flop * 5 / 2 : forward_flop;
      auto start = Clock::now();
      once(one.attention, with, r.stages);
      r.first_call = seconds_since(start);
      const Memory memory(one, *this, with);
      std::vector<double> times;
      std::vector<double> peaks;
      for (start = Clock::now(); times.size() < 5 || seconds_since(start) < o_.seconds;) {
        // The peak is asked for in between: the clock of the processor changes while we measure.
        peaks.push_back(runtime::cpu::peak_gflops(type_));
        runtime::cpu::Stages stages;
        const auto begun = Clock::now();
        once(one.attention, memory.resources, stages);
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
      print(r);
    }
  }

  /// The workspace, taken once and not at every call.
  struct Memory {
    Memory(const Case& one, const Bench& bench, Resources with) : resources(std::move(with)) {
      const Executor& executor = resources.executor;
      std::size_t size;
      if (bench.o_.backward) {
        Backward call{.q = bench.q_.tensor, .k = bench.k_.tensor, .v = bench.v_.tensor, .grad_o = bench.grad_o_.tensor};
        call.o = bench.o_out_.tensor;
        call.lse = bench.lse_.tensor;
        call.dq = bench.dq_.tensor;
        call.dk = bench.dk_.tensor;
        call.dv = bench.dv_.tensor;
        size = one.attention.workspace(call, executor);
      } else {
        size = one.attention.workspace(Forward{.q = bench.q_.tensor,
                                               .k = bench.k_.tensor,
                                               .v = bench.v_.tensor,
                                               .o = bench.o_out_.tensor,
                                               .lse = bench.lse_.tensor},
                                       executor);
      }
      bytes.resize(size + 64);
      const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
      resources.workspace = std::span(bytes).subspan((64 - at % 64) % 64, size);
    }
    std::vector<std::byte> bytes;
    Resources resources;
  };

  void print(const Result& r) {
    if (o_.json) {
      std::puts(json_of(r, o_).dump().c_str());
    } else {
      if (!std::exchange(header_stands_, true)) header();
      fmt::print("{:<10} {:>7} {:>10.3f} {:>10.3f} {:>9.1f} {:>7.1f} {:>9.1f} {:>9.1f}\n", r.row, r.threads,
                 r.best * 1e3, r.median * 1e3, r.gflops(r.best), 100 * r.gflops(r.best) / (r.peak * r.threads),
                 100 * r.gflops(r.median) / (r.peak * r.threads), r.first_call * 1e3);
    }
    std::fflush(stdout);
  }

  const BenchOptions& o_;
  bool header_stands_ = false;
  Data data_;
  DType type_;
  Owned q_, k_, v_, o_out_, lse_, grad_o_, dq_, dk_, dv_;
};

void check_options(const BenchOptions& o) {
  require_word("--target", o.target, std::array<std::string, 2>{"auto", "cpu"});
  require_word("--dtype", o.dtype, std::array<std::string, 3>{"f32", "f16", "bf16"});
  std::vector<std::string> names;
  for (const Row& row : known_rows) names.push_back(row.name);
  for (const std::string& row : o.rows) require_word("--row", row, names);
  const auto positive = [](const char* option, double value) {
    if (value > 0) return;
    throw Error("bad-size", fmt::format("{} cannot be {}", option, value), {.name = option}, "it is above 0",
                "see attune bench --help");
  };
  for (const auto& [option, value] : {std::pair{"--batch", o.batch},
                                      {"--heads", o.heads},
                                      {"--kv-heads", o.kv_heads.value_or(1)},
                                      {"--d", o.d},
                                      {"--dv", o.dv.value_or(1)},
                                      {"--seq", o.seq},
                                      {"--kv-seq", o.kv_seq.value_or(1)}})
    positive(option, static_cast<double>(value));
  positive("--seconds", o.seconds);
  for (const int threads : o.threads) positive("--threads", threads);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App& verb = *app.add_subcommand("bench", "how fast attention is on this machine, in percent of its peak");
  std::string names;
  for (const Row& row : known_rows) names += (names.empty() ? "" : "|") + row.name;
  verb.add_option("--row", o->rows, "a known attention; all of them if left out")->type_name(names);
  o->text.add_to(verb, Captures::FilesOrTypes);
  verb.add_option("--target", o->target, "what computes")->type_name("auto|cpu");
  verb.add_option("--dtype", o->dtype, "of q, k, v and o")->type_name("f32|f16|bf16");
  verb.add_option("--batch", o->batch, "1 if left out")->type_name("N");
  verb.add_option("--heads", o->heads, "query heads; 1 if left out")->type_name("N");
  verb.add_option("--kv-heads", o->kv_heads, "as many as --heads if left out")->type_name("N");
  verb.add_option("--seq", o->seq, "queries; 4096 if left out")->type_name("N");
  verb.add_option("--kv-seq", o->kv_seq, "keys; as many as queries if left out")->type_name("N");
  verb.add_option("--d", o->d, "width of a head; 128 if left out")->type_name("N");
  verb.add_option("--dv", o->dv, "width of the values; as --d if left out")->type_name("N");
  verb.add_option("--threads", o->threads, "how many threads; several are measured one after the other")
      ->type_name("N...");
  verb.add_option("--seconds", o->seconds, "how long to measure each row, at least; 1 if left out")->type_name("X");
  verb.add_flag("--backward", o->backward, "the gradients, given what the forward gave");
  verb.add_flag("--json", o->json, "one line of JSON for each row");
  verb.footer("Examples:\n"
              "  attune bench --row causal --d 64 --threads 1 2\n"
              "  attune bench --score '30.0f * tanh(s / 30.0f)' --mask 'q - kv < 512' --backward --json");
  verb.callback([o] {
    check_options(*o);
    Bench{*o}();
  });
}

}  // namespace attune::tools
