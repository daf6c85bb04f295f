// tools/explain_cuda.cpp — attune explain --target cuda: a call's possible kernels, the choice, its bounds
#include <algorithm>
#include <fmt/format.h>

#include "codegen/bound.h"
#include "codegen/occupancy.h"
#include "runtime/attention.h"
#include "runtime/cuda/consider.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/engine.h"
#include "runtime/cuda/tuned.h"
#include "tools/explain.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;

/// What a GPU would run for a call; without a GPU, what NVRTC compiles.
class OnDevice {
 public:
  OnDevice(const compiler::LoweredMod& lowered, const ExplainOptions& options)
      : call_(options.call), bench_(options.bench()), there_(!call_.arch && runtime::cuda::device_count() > 0),
        spec_(call_.spec(there_ ? runtime::cuda::facts(0).arch() : 90, bench_.heads / bench_.of_kv_heads())),
        parts_(codegen::gpu_parts(lowered, spec_.scale_positive)), kind_(codegen::call_kind(parts_, call_.length())) {
    std::optional<codegen::Preference> preference = call_.preference();
    if (!preference && there_) {
      runtime::cuda::Remembered found = runtime::cuda::remembered({.device = runtime::cuda::facts(0).name,
                                                                   .arch = spec_.arch,
                                                                   .dtype = spec_.dtype,
                                                                   .d = spec_.d,
                                                                   .dv = spec_.dv,
                                                                   .kind = kind_,
                                                                   .exact = spec_.exact});
      preference = std::move(found.preference);
      notes_ = std::move(found.notes);
      if (preference) notes_.push_back(preference->origin);
    }
    considered_ = runtime::cuda::consider(parts_, kind_, spec_, preference ? &*preference : nullptr, true);
    notes_.insert(notes_.end(), considered_.story.begin(), considered_.story.end());
    work_bounds(lowered.mod);
    if (options.measure) measure(preference ? &*preference : nullptr);
  }

  Explained operator()() const { return {text(), json()}; }

 private:
  std::string text() const {
    std::string out = fmt::format("\non {}, compute capability {}.{}\n", name(), spec_.arch / 10, spec_.arch % 10);
    out += fmt::format("  call     {}{}, B={} H={}/{}, D={}/{}, S={}x{}\n", call_.dtype, bench_.exact_text(),
                       bench_.batch, bench_.heads, bench_.of_kv_heads(), spec_.d, spec_.dv, call_.seq,
                       bench_.of_kv_seq());
    out += fmt::format("  kind     {}, {}, {}\n", name_of(kind_.cover), name_of(kind_.mod), name_of(kind_.length));
    out += fmt::format("  tiles    {}\n", tiles());
    for (std::size_t i = 0; i < considered_.candidates.size(); ++i) {
      const runtime::cuda::Candidate& c = considered_.candidates[i];
      out += fmt::format(
          "  {:<8} {}\n           {} threads, {} registers, {} bytes spilled, {} bytes of shared memory{}\n",
          verdict(i), codegen::variant_of(c.choice.plan).text(), c.choice.threads, c.binary->registers,
          c.binary->spilled, c.choice.shared_bytes, c.flaw.empty() ? "" : "   — " + c.flaw);
      const codegen::Occupancy there = occupancy(c);
      out += fmt::format("           {} {} of a multiprocessor, {} of {} warps   — limited by {}\n", there.blocks,
                         there.blocks == 1 ? "block" : "blocks", there.warps, there.most_warps, there.limited_by);
    }
    for (const std::string& note : notes_) out += fmt::format("  note     {}\n", note);
    return out + bound_text();
  }

  std::string bound_text() const {
    const auto teraflops = [&](double seconds) { return flop_ / seconds / 1e12; };
    std::string out = fmt::format("\nwhat bounds it, by the data sheet of {}: {} multiprocessors at {:.2f} GHz\n",
                                  card_.name, card_.multiprocessors, card_.clock / 1e9);
    const auto line = [&](std::string_view name, const std::string& text) {
      out += fmt::format("  {:<9}{}\n", name, text);
    };
    line("work", fmt::format("{:.2f} GFLOP for the pairs that stay, {:.2f} for the tiles that are visited", flop_ / 1e9,
                             2 * work_.visited * (work_.d + work_.dv) / 1e9));
    line("products", fmt::format("{:.4f} ms   — {:.0f} TFLOP/s of {}", bound_.products * 1e3,
                                 card_.flops(spec_.dtype, spec_.exact) / 1e12, call_.dtype));
    line("exponent", fmt::format("{:.4f} ms   — {} special function{} a pair, 16 a clock and multiprocessor",
                                 bound_.exponentials * 1e3, work_.specials, work_.specials == 1 ? "" : "s"));
    line("memory", fmt::format("{:.4f} ms   — {:.1f} MB of q, k, v and o, each once, at {:.2f} TB/s",
                               bound_.memory * 1e3, work_.bytes / 1e6, card_.bytes_per_second / 1e12));
    line("bound", fmt::format("{:.4f} ms, {:.1f} TFLOP/s   — {}", bound_.seconds() * 1e3, teraflops(bound_.seconds()),
                              bound_.by()));
    if (times_.all.empty()) return out;
    line("measured", fmt::format("{:.4f} ms, {:.4f} to {:.4f}   — {:.1f} TFLOP/s, {:.1f} % of the bound",
                                 times_.median() * 1e3, times_.p10() * 1e3, times_.p90() * 1e3,
                                 teraflops(times_.median()), 100 * bound_.seconds() / times_.median()));
    return out;
  }

  Json json() const {
    Json out{{"device", name()}, {"arch", spec_.arch}};
    out.update(bench_.shape());
    out.update({{"cover", std::string(name_of(kind_.cover))},
                {"mod", std::string(name_of(kind_.mod))},
                {"length", std::string(name_of(kind_.length))},
                {"tiles", tiles()},
                {"notes", notes_}});
    for (std::size_t i = 0; i < considered_.candidates.size(); ++i) {
      const runtime::cuda::Candidate& c = considered_.candidates[i];
      out["candidates"].push_back({{"kernel", codegen::variant_of(c.choice.plan).text()},
                                   {"verdict", verdict(i)},
                                   {"threads", c.choice.threads},
                                   {"registers", c.binary->registers},
                                   {"spilled", c.binary->spilled},
                                   {"shared_bytes", c.choice.shared_bytes},
                                   {"occupancy",
                                    {{"blocks", occupancy(c).blocks},
                                     {"warps", occupancy(c).warps},
                                     {"most_warps", occupancy(c).most_warps},
                                     {"limited_by", occupancy(c).limited_by}}},
                                   {"flaw", c.flaw}});
    }
    out["bound"] = {{"card", std::string(card_.name)},
                    {"flop", flop_},
                    {"visited_flop", 2 * work_.visited * (work_.d + work_.dv)},
                    {"specials_a_pair", work_.specials},
                    {"bytes", work_.bytes},
                    {"products_seconds", bound_.products},
                    {"exponent_seconds", bound_.exponentials},
                    {"memory_seconds", bound_.memory},
                    {"seconds", bound_.seconds()},
                    {"tflops", flop_ / bound_.seconds() / 1e12},
                    {"by", std::string(bound_.by())}};
    if (!times_.all.empty())
      out["measured"] = {
          {"runs", times_.all.size()},
          {"seconds",
           {{"best", times_.best()}, {"p10", times_.p10()}, {"median", times_.median()}, {"p90", times_.p90()}}},
          {"tflops", flop_ / times_.median() / 1e12},
          {"percent_of_bound", 100 * bound_.seconds() / times_.median()}};
    return out;
  }

  codegen::Occupancy occupancy(const runtime::cuda::Candidate& c) const {
    return codegen::occupancy(spec_.arch, c.choice.threads, c.binary->registers, c.choice.shared_bytes);
  }

  /// For the chosen kernel.
  void work_bounds(const compiler::Mod& mod) {
    const codegen::KernelPlan& plan = considered_.candidates[considered_.chosen].choice.plan;
    Data data;
    const Case one = std::move(bench_cases(bench_, data).at(0));
    flop_ = forward_flop(one, bench_);
    work_ = {.dtype = spec_.dtype,
             .visited = visited_pairs(one, bench_, plan.queries(), plan.n),
             .d = static_cast<double>(spec_.d),
             .dv = static_cast<double>(spec_.dv),
             .specials = codegen::special_functions(mod),
             .bytes = tensor_bytes(bench_),
             .exact = spec_.exact};
    card_ = codegen::card(spec_.arch, there_ ? std::string_view(runtime::cuda::facts(0).name) : std::string_view());
    if (there_) card_.multiprocessors = runtime::cuda::facts(0).sms;
    bound_ = codegen::bound(card_, work_);
  }

  void measure(const codegen::Preference* preference) {
    if (!there_)
      throw Error("bad-usage", "the command line cannot be read", {.name = "--measure"},
                  call_.arch ? "--arch asks about a GPU that need not be here" : "there is no GPU here to measure on",
                  "leave --measure out, or write --target cpu");
    constexpr double seconds = 0.3;
    Data data(Device::cuda());
    const ForwardTensors tensors(bench_, data);
    const Case one = std::move(bench_cases(bench_, data).at(0));
    runtime::run(one.attention, tensors.call(), preference);
    times_.all = runtime::cuda::times(data.device().index, seconds,
                                      [&] { runtime::run(one.attention, tensors.call(), preference); });
    std::ranges::sort(times_.all);
  }

  std::string name() const { return there_ ? runtime::cuda::facts(0).name : "a GPU that is not here"; }
  std::string verdict(std::size_t i) const {
    return i == considered_.chosen ? "chosen" : i < considered_.chosen ? "left" : "behind";
  }
  std::string tiles() const {
    switch (kind_.cover) {
      case codegen::CoverKind::full: return "all, and all of them full";
      case codegen::CoverKind::listed:
        return "as lists say that a kernel of their own writes at each call, or once for a cover";
      case codegen::CoverKind::pairs: return "all, and each pair is asked for";
      case codegen::CoverKind::causal:
      case codegen::CoverKind::window: break;
    }
    return "within the bands along kv, above: full where nothing drops";
  }

  const DeviceCall& call_;
  BenchOptions bench_;
  bool there_;
  codegen::KernelSpec spec_;
  codegen::GpuParts parts_;
  codegen::CallKind kind_;
  runtime::cuda::Considered considered_;
  std::vector<std::string> notes_;
  double flop_ = 0;
  codegen::Work work_;
  codegen::Card card_{};
  codegen::Bound bound_;
  Times times_;
};

}  // namespace

Explained explain_cuda(const compiler::LoweredMod& lowered, const ExplainOptions& options) {
  return OnDevice(lowered, options)();
}

}  // namespace attune::tools
