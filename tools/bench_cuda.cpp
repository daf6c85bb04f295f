// tools/bench_cuda.cpp — attune bench --target cuda: how fast attention is on a GPU, by its own clock
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/attention.h"
#include "runtime/cuda/engine.h"
#include "tools/bench.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Result {
  std::string row, story;
  Times times;
  double flop = 0, first_call = 0;

  double tflops(double seconds) const { return flop / seconds / 1e12; }
};

class CudaBench {
 public:
  explicit CudaBench(const BenchOptions& o)
      : o_(o), device_(Device::cuda()), data_(device_), q_(data_.normal(o.type(), {o.batch, o.heads, o.seq, o.d})),
        k_(data_.normal(o.type(), {o.batch, o.of_kv_heads(), o.of_kv_seq(), o.d})),
        v_(data_.normal(o.type(), {o.batch, o.of_kv_heads(), o.of_kv_seq(), o.of_dv()})),
        out_(zeros(o.type(), {o.batch, o.heads, o.seq, o.of_dv()})),
        lse_(zeros(DType::f32, {o.batch, o.heads, o.seq})) {}

  void operator()() {
    Data host;
    const std::vector<Case> cases = bench_cases(o_, data_), on_host = bench_cases(o_, host);
    for (std::size_t i = 0; i < cases.size(); ++i) measure(cases[i], on_host[i]);
  }

 private:
  Owned zeros(DType type, const std::vector<std::int64_t>& shape) const {
    Owned out;
    out.memory = detail::allocate(device_, type, shape);
    out.tensor = Tensor(out.memory.get(), type, shape, {}, device_);
    return out;
  }

  Forward call() const {
    return {.q = q_.tensor, .k = k_.tensor, .v = v_.tensor, .o = out_.tensor, .lse = lse_.tensor};
  }

  void measure(const Case& one, const Case& on_host) {
    Result r{.row = one.name, .story = runtime::story(one.attention, call()), .times = {}};
    r.flop = forward_flop(on_host, o_);
    const auto start = Clock::now();
    one.attention.run(call());
    r.first_call = std::chrono::duration<double>(Clock::now() - start).count();
    r.times.all = runtime::cuda::times(device_.index, o_.seconds, [&] { one.attention.run(call()); });
    std::sort(r.times.all.begin(), r.times.all.end());
    print(r);
  }

  void print(const Result& r) {
    const Times& t = r.times;
    if (o_.json) {
      const Json line{{"row", r.row},
                      {"direction", "forward"},
                      {"dtype", o_.dtype},
                      {"batch", o_.batch},
                      {"heads", o_.heads},
                      {"kv_heads", o_.of_kv_heads()},
                      {"seq", o_.seq},
                      {"kv_seq", o_.of_kv_seq()},
                      {"d", o_.d},
                      {"dv", o_.of_dv()},
                      {"device", runtime::cuda::device_name(device_.index)},
                      {"kernel", r.story},
                      {"runs", t.all.size()},
                      {"seconds", {{"best", t.best()}, {"p10", t.p10()}, {"median", t.median()}, {"p90", t.p90()}}},
                      {"tflops", {{"best", r.tflops(t.best())}, {"median", r.tflops(t.median())}}}};
      std::puts(line.dump().c_str());
    } else {
      if (!std::exchange(header_stands_, true)) {
        fmt::print("{} forward, B={} H={}/{} S={}x{} D={}/{}, {}\n", o_.dtype, o_.batch, o_.heads, o_.of_kv_heads(),
                   o_.seq, o_.of_kv_seq(), o_.d, o_.of_dv(), runtime::cuda::device_name(device_.index));
        fmt::print("{:<10} {:>10} {:>10} {:>10} {:>9} {:>9}  kernel\n", "row", "best ms", "median ms", "p90 ms",
                   "TFLOP/s", "median");
      }
      fmt::print("{:<10} {:>10.4f} {:>10.4f} {:>10.4f} {:>9.1f} {:>9.1f}  {}\n", r.row, t.best() * 1e3,
                 t.median() * 1e3, t.p90() * 1e3, r.tflops(t.best()), r.tflops(t.median()),
                 r.story.substr(0, r.story.find('\n')));
    }
    std::fflush(stdout);
  }

  const BenchOptions& o_;
  Device device_;
  Data data_;
  Owned q_, k_, v_, out_, lse_;
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
