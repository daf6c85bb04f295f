// tools/measure/bench_cuda.cpp — attune bench --target cuda: how fast attention is on a GPU, by the GPU's clock
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/attention/tools.h"
#include "runtime/platform/memory.h"
#include "tools/measure/bench.h"
#include "tools/output/output.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// A row that is compiled and has run once.
struct Prepared {
  Case one;
  Cover cover;  ///< none: each call lists its own tiles
  CapturedGradients gradients;
  std::string mod;
  std::vector<runtime::KernelStory> kernels;  ///< in the order of their launches
  double flop = 0, first_call = 0;
  double bytes = 0;  ///< of keys and values, of a decoder's step

  double tflops(double seconds) const { return flop / seconds / 1e12; }
  std::string names() const {
    std::string out;
    for (const auto& kernel : kernels) out += (out.empty() ? "" : " ") + kernel.variant.text();
    return out;
  }
};

class CudaBench {
 public:
  explicit CudaBench(const BenchOptions& o)
      : o_(o), history_(o.save, o.compare), data_(Device::cuda()), tensors_(o, data_) {
    if (o.has_backward()) backward_ = BackwardTensors(o, data_);
    preference_ = preference_of(o);
    Data host;
    std::vector<Case> cases = bench_cases(o_, data_), on_host = bench_cases(o_, host);
    check_positions(on_host, o);
    for (std::size_t i = 0; i < cases.size(); ++i)
      prepare(std::move(cases[i]), flop_of(on_host[i], o), o.decode ? kept_bytes(on_host[i], o) : 0);
  }

  void operator()() {
    if (!o_.paced) return round();
    for (int c; (c = std::getchar()) != EOF;)
      if (c == '\n') round();
  }

 private:
  using Direction = BenchOptions::Direction;

  bool lists_once() const { return o_.cover == "once"; }
  /// The user's preference if it names a kernel of this direction; a training step runs kernels of both directions.
  const codegen::Preference* preference(Direction of) const {
    if (!preference_) return nullptr;
    return is_of(*preference_, of == Direction::backward) ? &*preference_ : nullptr;
  }

  void forward(const Prepared& row) const {
    runtime::run(row.one.attention, tensors_.call(), preference(Direction::forward), {.cover = row.cover});
  }
  Backward backward_call(const Prepared& row) const {
    Backward out = backward_.call(tensors_);
    out.captured = row.gradients.captured;
    return out;
  }
  void backward(const Prepared& row) const {
    runtime::run(row.one.attention, backward_call(row), preference(Direction::backward));
  }
  void once(const Prepared& row) const {
    if (o_.direction() != Direction::backward) forward(row);
    if (o_.has_backward()) backward(row);
  }

  std::vector<double> in_graphs(const Prepared& row) const {
    const codegen::Preference* const kernel = preference(Direction::forward);
    const std::size_t bytes = runtime::workspace(row.one.attention, tensors_.call(), kernel);
    const auto room = data_.device().array<std::uint8_t>({static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1))});
    return runtime::cuda::times_of_graphs(data_.device().index, o_.seconds, *o_.graph, [&](void* stream) {
      runtime::run(
          row.one.attention, tensors_.call(), kernel,
          {.workspace = {reinterpret_cast<std::byte*>(room.data()), bytes}, .stream = stream, .cover = row.cover});
    });
  }

  void prepare(Case one, double flop, double bytes) {
    Prepared row{
        .one = std::move(one), .cover = {}, .gradients = {}, .mod = {}, .kernels = {}, .flop = flop, .bytes = bytes};
    row.mod = mod_digest(row.one);
    if (o_.grads) row.gradients = CapturedGradients(row.one.attention, data_);
    // A backward reads its forward's results.
    if (o_.direction() == Direction::backward) runtime::run(row.one.attention, tensors_.call(), nullptr);
    const auto start = Clock::now();
    once(row);
    row.first_call = std::chrono::duration<double>(Clock::now() - start).count();
    attune::wait();  // for the last of two tiers
    if (o_.direction() != Direction::backward)
      row.kernels.push_back(
          runtime::stories(row.one.attention, tensors_.call(), preference(Direction::forward)).front());
    if (o_.has_backward())
      for (auto& kernel : runtime::stories(row.one.attention, backward_call(row), preference(Direction::backward)))
        row.kernels.push_back(std::move(kernel));
    if (lists_once()) row.cover = runtime::cover(row.one.attention, tensors_.call(), preference(Direction::forward));
    rows_.push_back(std::move(row));
  }

  void round() {
    Progress progress(o_.progress.style(), "bench", rows_.size());
    for (const Prepared& row : rows_) {
      Times t;
      t.all = o_.graph ? in_graphs(row) : runtime::cuda::times(data_.device().index, o_.seconds, [&] { once(row); });
      std::sort(t.all.begin(), t.all.end());
      progress.wipe();
      print(row, t);
      progress.step(row.one.name);
    }
  }

  static Json facts(const runtime::KernelStory& kernel) {
    return {{"registers", kernel.registers},
            {"spilled", kernel.spilled},
            {"shared_bytes", kernel.shared_bytes},
            {"notes", kernel.notes}};
  }

  Json json_of(const Prepared& r, const Times& t) const {
    Json line{{"row", r.one.name}, {"mod", r.mod}, {"direction", std::string(name_of(o_.direction()))}};
    line.update(o_.shape());
    line.update({{"device", runtime::cuda::device_name(data_.device().index)},
                 {"cover", o_.cover.value_or("each")},
                 {"kernel", r.names()}});
    if (r.kernels.size() == 1)
      line.update(facts(r.kernels[0]));
    else
      for (const runtime::KernelStory& kernel : r.kernels) {
        Json one{{"kernel", kernel.variant.text()}};
        one.update(facts(kernel));
        line["kernels"].push_back(std::move(one));
      }
    line.update({{"first_call_seconds", r.first_call},
                 {"flop", r.flop},
                 {"runs", t.all.size()},
                 {"seconds", t.json()},
                 {"tflops", {{"best", r.tflops(t.best())}, {"median", r.tflops(t.median())}}}});
    if (o_.decode)
      line.update({{"kv_bytes", r.bytes},
                   {"gb_s", {{"best", r.bytes / t.best() / 1e9}, {"median", r.bytes / t.median() / 1e9}}}});
    return line;
  }

  void print(const Prepared& r, const Times& t) {
    history_.tell(json_of(r, t), o_.json, [&] {
      if (!std::exchange(header_stands_, true)) {
        const std::string sizes = o_.packed() ? o_.lengths_text() : fmt::format("B={} {}", o_.batch, o_.lengths_text());
        print_out("{} {}{}{}, {} H={}/{} D={}/{}, {}{}\n", o_.types_text(), name_of(o_.direction()),
                  o_.grads ? " with captured gradients" : "", o_.exact_text(), sizes, o_.heads, o_.of_kv_heads(), o_.d,
                  o_.of_dv(), runtime::cuda::device_name(data_.device().index),
                  lists_once() ? ", tiles listed before" : "");
        print_out("{:<10} {:>10} {:>10} {:>10} {:>9} {:>9}{}  kernel\n", "row", "best ms", "median ms", "p90 ms",
                  "TFLOP/s", "median", o_.decode ? fmt::format(" {:>9}", "GB/s") : "");
      }
      print_out("{:<10} {:>10.4f} {:>10.4f} {:>10.4f} {:>9.1f} {:>9.1f}{}  {}\n", r.one.name, t.best() * 1e3,
                t.median() * 1e3, t.p90() * 1e3, r.tflops(t.best()), r.tflops(t.median()),
                o_.decode ? fmt::format(" {:>9.1f}", r.bytes / t.median() / 1e9) : "", r.kernels[0].kernel);
      for (std::size_t i = 1; i < r.kernels.size(); ++i) print_out("{:>63}{}\n", "", r.kernels[i].kernel);
    });
  }

  const BenchOptions& o_;
  History history_;
  Data data_;
  ForwardTensors tensors_;
  BackwardTensors backward_;
  std::optional<codegen::Preference> preference_;
  std::vector<Prepared> rows_;
  bool header_stands_ = false;
};

}  // namespace

void bench_cuda(const BenchOptions& options) { CudaBench{options}(); }

}  // namespace attune::tools
