// tools/bench_cuda.cpp — attune bench --target cuda: how fast attention is on a GPU, by the GPU's clock
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/attention.h"
#include "runtime/cuda/engine.h"
#include "tools/bench.h"
#include "tools/history.h"
#include "tools/output.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// A row that is compiled and has run once.
struct Prepared {
  Case one;
  Cover cover;  ///< none: each call lists its own tiles
  std::string mod;
  runtime::cuda::KernelStory story;
  double flop = 0, first_call = 0;

  double tflops(double seconds) const { return flop / seconds / 1e12; }
};

class CudaBench {
 public:
  explicit CudaBench(const BenchOptions& o)
      : o_(o), history_(o.save, o.compare), data_(Device::cuda()), tensors_(o, data_) {
    if (o.kernel) preference_ = {codegen::variant(*o.kernel), true, ""};
    Data host;
    std::vector<Case> cases = bench_cases(o_, data_), on_host = bench_cases(o_, host);
    for (std::size_t i = 0; i < cases.size(); ++i) prepare(std::move(cases[i]), forward_flop(on_host[i], o));
  }

  void operator()() {
    if (!o_.paced) return round();
    for (int c; (c = std::getchar()) != EOF;)
      if (c == '\n') round();
  }

 private:
  bool lists_once() const { return o_.cover == "once"; }
  const codegen::Preference* preference() const { return preference_ ? &*preference_ : nullptr; }

  void prepare(Case one, double flop) {
    Prepared row{.one = std::move(one), .cover = {}, .mod = {}, .story = {}, .flop = flop};
    row.mod = mod_digest(row.one);
    const auto start = Clock::now();
    runtime::run(row.one.attention, tensors_.call(), preference());
    row.story = runtime::story(row.one.attention, tensors_.call(), preference());
    row.first_call = std::chrono::duration<double>(Clock::now() - start).count();
    if (lists_once()) row.cover = runtime::cover(row.one.attention, tensors_.call(), preference());
    rows_.push_back(std::move(row));
  }

  void round() {
    for (const Prepared& row : rows_) {
      Times t;
      t.all = runtime::cuda::times(data_.device().index, o_.seconds,
                                   [&] { runtime::run(row.one.attention, tensors_.call(), preference(), row.cover); });
      std::sort(t.all.begin(), t.all.end());
      print(row, t);
    }
  }

  Json json_of(const Prepared& r, const Times& t) const {
    Json line{{"row", r.one.name}, {"mod", r.mod}, {"direction", "forward"}};
    line.update(o_.shape());
    line.update({{"device", runtime::cuda::device_name(data_.device().index)},
                 {"cover", o_.cover.value_or("each")},
                 {"kernel", r.story.variant.text()},
                 {"registers", r.story.registers},
                 {"spilled", r.story.spilled},
                 {"shared_bytes", r.story.shared_bytes},
                 {"notes", r.story.notes},
                 {"first_call_seconds", r.first_call},
                 {"flop", r.flop},
                 {"runs", t.all.size()},
                 {"seconds", {{"best", t.best()}, {"p10", t.p10()}, {"median", t.median()}, {"p90", t.p90()}}},
                 {"tflops", {{"best", r.tflops(t.best())}, {"median", r.tflops(t.median())}}}});
    return line;
  }

  void print(const Prepared& r, const Times& t) {
    Json line = json_of(r, t);
    const std::optional<Json> compared = history_.note(line);
    if (o_.json) {
      if (compared) line["compared"] = *compared;
      write_json(line);
    } else {
      if (!std::exchange(header_stands_, true)) {
        const std::string sizes = o_.packed() ? fmt::format("S={} packed", fmt::join(o_.lengths, "+"))
                                              : fmt::format("B={} S={}x{}", o_.batch, o_.seq, o_.of_kv_seq());
        print_out("{} forward{}, {} H={}/{} D={}/{}, {}{}\n", o_.dtype, o_.exact_text(), sizes, o_.heads,
                  o_.of_kv_heads(), o_.d, o_.of_dv(), runtime::cuda::device_name(data_.device().index),
                  lists_once() ? ", tiles listed before" : "");
        print_out("{:<10} {:>10} {:>10} {:>10} {:>9} {:>9}  kernel\n", "row", "best ms", "median ms", "p90 ms",
                  "TFLOP/s", "median");
      }
      print_out("{:<10} {:>10.4f} {:>10.4f} {:>10.4f} {:>9.1f} {:>9.1f}  {}\n", r.one.name, t.best() * 1e3,
                t.median() * 1e3, t.p90() * 1e3, r.tflops(t.best()), r.tflops(t.median()), r.story.kernel);
      if (compared) print_out("           {}\n", in_words(*compared));
    }
    flush_out();
  }

  const BenchOptions& o_;
  History history_;
  Data data_;
  ForwardTensors tensors_;
  std::optional<codegen::Preference> preference_;
  std::vector<Prepared> rows_;
  bool header_stands_ = false;
};

}  // namespace

void bench_cuda(const BenchOptions& options) {
  if (options.backward)
    throw Error("no-engine", "no engine of this build can run this", {.name = "--backward"},
                "the CUDA engine has no backward yet", "leave --backward out, or write --target cpu");
  CudaBench{options}();
}

}  // namespace attune::tools
