// tools/explain/explain_cuda.cpp — attune explain --target cuda: a call's possible kernels, the choice, its bounds
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/ceil_div.h"
#include "codegen/choose/call_choices.h"
#include "codegen/choose/card.h"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/source/gradient_source.h"
#include "runtime/attention/offline/builds.h"
#include "runtime/attention/tools.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/cuda/kernels/tuned.h"
#include "runtime/platform/memory.h"
#include "tools/explain/explain.h"
#include "tools/explain/support_rows.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;

/// The kernels that could compute one way (forward or backward), and the result of compiling them.
struct OfWay {
  codegen::WayChoices choices;
  runtime::cuda::Considered considered;
};

/// How a backward sums the gradient of a captured tensor.
struct CapturedSums {
  std::string name;
  std::vector<std::string> how;  ///< of each term
  std::size_t elements;
  std::string of_each;  ///< the workspace of an element or a pair
  double bytes;         ///< of the workspace
  bool of_ds = false;   ///< the workspace is for dS
};

/// 12.3 KB, 12.3 MB or 12.3 GB.
std::string bytes_text(double bytes) {
  for (const auto& [unit, size] : {std::pair{"GB", 1e9}, {"MB", 1e6}})
    if (bytes >= size) return fmt::format("{:.1f} {}", bytes / size, unit);
  return fmt::format("{:.1f} KB", bytes / 1e3);
}

/// Where the compiler's time went.
std::string phases_of(const runtime::cuda::Binary& binary) {
  std::string out;
  for (const auto& one : binary.phases)
    out += fmt::format("{}{} {:.2f} s", out.empty() ? "" : ", ", one.name, one.seconds);
  return out;
}

/// Bytes of sums along diagonals, as spread_diagonals.cuh counts them.
double bytes_of_diagonals(const BenchOptions& call, const codegen::Tile& tile) {
  const std::int64_t tiles = ceil_div(call.of_kv_seq(), tile.n), distances = round_up(call.seq, tile.m) + tile.n;
  return static_cast<double>(call.batch * call.heads * tiles * distances) * sizeof(float);
}

/// `plan`: of the chosen kernel.
std::vector<CapturedSums> captured_sums(const codegen::GpuParts& parts, std::span<const Tensor> captures,
                                        const codegen::KernelPlan& plan, const BenchOptions& call) {
  const auto pairs = static_cast<double>(call.batch * call.heads * call.seq * call.of_kv_seq());
  std::vector<CapturedSums> out;
  const bool whole = codegen::sums_whole(plan), has_ds = codegen::leaves_ds(parts, plan);
  const auto most = static_cast<double>(runtime::Means{}.ds_bytes);
  const auto of_pair = static_cast<double>(size_of(plan.spec.dtype));
  for (std::uint32_t slot = 0; slot < captures.size(); ++slot) {
    if (!parts.gradient->wanted[slot]) continue;
    const auto elements = static_cast<std::size_t>(captures[slot].size());
    constexpr std::size_t of_sum = exact_words * sizeof(std::uint64_t);
    CapturedSums one{parts.mod().captures[slot].name,
                     {},
                     elements,
                     fmt::format("{} bytes an element", of_sum),
                     static_cast<double>(elements * of_sum)};
    if (has_ds && parts.gradient->is_of_ds(slot))
      one.of_each = fmt::format("up to {:.0f} bytes a pair, none if the gradient is dS itself", of_pair),
      one.bytes = std::min(of_pair * pairs, most), one.of_ds = true;
    for (const codegen::Term& term : parts.gradient->terms)
      if (term.capture == slot) {
        const SumFacts& sum = facts_of(whole ? term.whole : term.parts);
        one.how.emplace_back(whole ? sum.words : sum.words_of_parts);
        if (sum.summers & by_spread_diagonals)
          one.how.back() += fmt::format(", in {} for all such tensors",
                                        bytes_text(bytes_of_diagonals(call, plan.tile)));
      }
    for (const compiler::Scatter& scatter : parts.gradient->of_sink)
      if (scatter.capture == slot)
        one.how.emplace_back(whole ? "of the sink, of lse and delta: pairs are not visited again"
                                   : "of the sink: a block of the kernel of q adds one number");
    if (one.how.empty()) one.how.emplace_back("nothing adds to it: it is 0");
    out.push_back(std::move(one));
  }
  return out;
}

/// The kernels that a GPU would run for a call; without a GPU, the kernels that NVRTC compiles.
class OnDevice {
 public:
  OnDevice(const compiler::LoweredMod& lowered, const ExplainOptions& options)
      : call_(options.call), bench_(options.bench()), there_(!call_.arch && runtime::cuda::device_count() > 0) {
    codegen::CallSpec call = call_.spec(lowered, there_ ? runtime::cuda::facts(0).arch() : 90);
    if (options.backward) call.backward = runtime::wanted_of(lowered.mod, options.grads)[0];
    if (call.preference) preference_of(bench_);
    spec_ = call.spec;
    codegen::CallChoices choices = codegen::call_choices(lowered, call);
    if (!call.preference && there_ && !options.backward && recall(choices.ways[0].parts, call))
      choices = codegen::call_choices(lowered, call);
    notes_.insert(notes_.end(), choices.story.begin(), choices.story.end());
    for (codegen::WayChoices& way : choices.ways) consider(std::move(way));
    if (options.backward)
      captured_ = captured_sums(ways_[0].choices.parts, lowered.slots.captures, chosen_of(ways_[0]), bench_);
    work_bounds(lowered.mod, options.card);
    expect(lowered);
    if (options.measure) measure(call.preference ? &*call.preference : nullptr);
  }

  Explained operator()() const { return {text(), json()}; }

 private:
  /// This machine's tuned variant, looked up as a call does.
  bool recall(const codegen::GpuParts& parts, codegen::CallSpec& call) {
    if (spec_.sharing.decode()) return false;
    runtime::cuda::Remembered found = runtime::cuda::remembered(
        runtime::cuda::tuned_key(runtime::cuda::facts(0).name, parts, call));
    call.preference = std::move(found.preference);
    notes_ = std::move(found.notes);
    if (call.preference) notes_.push_back(call.preference->origin);
    return call.preference.has_value();
  }

  void consider(codegen::WayChoices way) {
    runtime::cuda::Considered considered = runtime::cuda::consider(way.parts, way.call, codegen::kernels(way.way),
                                                                   runtime::cuda::Compiles::all);
    notes_.insert(notes_.end(), considered.story.begin(), considered.story.end());
    if (!considered.made.empty()) notes_.push_back(considered.made);
    ways_.push_back({std::move(way), std::move(considered)});
  }

  const codegen::CallKind& kind() const { return ways_[0].choices.kind; }
  /// The parts of the gradient; only in a backward.
  const codegen::GradientParts& gradient() const { return *ways_[0].choices.parts.gradient; }

  std::string text() const {
    std::string out = fmt::format("\n{}on {}, compute capability {}.{}\n", bench_.backward ? "backward " : "", name(),
                                  spec_.arch / 10, spec_.arch % 10);
    out += fmt::format("  call     {}{}, B={} H={}/{}, D={}/{}, {}\n", bench_.types_text(), bench_.exact_text(),
                       bench_.batch, bench_.heads, bench_.of_kv_heads(), spec_.d, spec_.dv, where());
    out += fmt::format("  kind     {}, {}, {}\n", name_of(kind().cover), name_of(kind().mod), name_of(kind().length));
    out += fmt::format("  tiles    {}\n", tiles());
    for (const OfWay& one : ways_) {
      if (one.choices.way != codegen::Way::forward) out += fmt::format("  {}\n", name_of(one.choices.way));
      for (std::size_t i = 0; i < one.considered.candidates.size(); ++i) {
        const runtime::cuda::Candidate& c = one.considered.candidates[i];
        out += fmt::format(
            "  {:<8} {}\n           {} threads, {} registers, {} bytes spilled, {} bytes of shared memory{}\n",
            verdict(one, i), codegen::variant_of(c.choice.plan).text(), c.choice.threads, c.binary->registers,
            c.binary->spilled, c.choice.shared_bytes, c.flaw.empty() ? "" : "   — " + c.flaw);
        if (!c.binary->phases.empty()) out += fmt::format("           compiled now: {}\n", phases_of(*c.binary));
        const codegen::Occupancy there = occupancy(c);
        out += fmt::format("           {} {} per SM, {} of {} warps   — limited by {}\n", there.blocks,
                           there.blocks == 1 ? "block" : "blocks", there.warps, there.most_warps, there.limited_by);
      }
    }
    if (bench_.backward) out += backward_text();
    for (const std::string& note : notes_) out += fmt::format("  note     {}\n", note);
    return out + bound_text();
  }

  std::string backward_text() const {
    std::string out = fmt::format("  delta    {}\n", delta_in_words());
    for (const CapturedSums& one : captured_)
      for (std::size_t i = 0; i < one.how.size(); ++i)
        out += fmt::format("  {:<8} {}{}\n", i == 0 ? "captured" : "", i == 0 ? one.name + ", " : "  ",
                           one.how[i] + (i + 1 < one.how.size()
                                             ? ""
                                             : fmt::format("\n           {}, {}", one.of_each, bytes_text(one.bytes))));
    return out;
  }
  std::string_view delta_in_words() const {
    return gradient().delta_degree > 0 ? "of each row from o and its gradient, by a separate kernel before"
                                       : "of each row from its pairs, by a pass of its own over the keys: prob is no "
                                         "multiple of a power of p up to p^2";
  }

  std::string bound_text() const {
    const auto teraflops = [&](double seconds) { return flop_ / seconds / 1e12; };
    std::string out = fmt::format("\nwhat bounds it, by the data sheet of {}: {} SMs at {:.2f} GHz\n", card_.name,
                                  card_.multiprocessors, card_.clock / 1e9);
    const auto line = [&](std::string_view name, const std::string& text) {
      out += fmt::format("  {:<9}{}\n", name, text);
    };
    line("work", fmt::format("{:.2f} GFLOP for the pairs that stay, {:.2f} for the tiles that are visited", flop_ / 1e9,
                             2 * work_.visited * (work_.d + work_.dv) / 1e9));
    line("products", fmt::format("{:.4f} ms   — {:.0f} TFLOP/s of {}{}", bound_.products * 1e3, peak(work_.products),
                                 call_.dtype, instruction()));
    line("exponent", fmt::format("{:.4f} ms   — {} special function{} a pair, 16 per clock and SM",
                                 bound_.exponentials * 1e3, work_.specials, work_.specials == 1 ? "" : "s"));
    if (work_.randoms > 0)
      line("random",
           fmt::format("{:.4f} ms   — {} random number{} a pair: {} multiplications each, {} per clock and SM",
                       bound_.random * 1e3, work_.randoms, work_.randoms == 1 ? "" : "s",
                       codegen::multiplications_a_random, codegen::multiplications_a_clock));
    line("memory", fmt::format("{:.4f} ms   — {} of {}, each once{}, at {:.2f} TB/s", bound_.memory * 1e3,
                               bytes_text(work_.bytes - 2 * sums_),
                               bench_.backward ? "q, k, v, o and their gradients" : "q, k, v and o",
                               sums_ > 0 ? fmt::format("; {} of sums, cleared and read", bytes_text(sums_)) : "",
                               card_.bytes_per_second / 1e12));
    if (!fits())
      line("", fmt::format("does not fit: {} has {:.0f} GB, and the call needs {}", card_.name, card_.bytes / 1e9,
                           bytes_text(needed())));
    line("bound", fmt::format("{:.4f} ms, {:.1f} TFLOP/s   — {}", bound_.seconds() * 1e3, teraflops(bound_.seconds()),
                              bound_.by()));
    for (std::size_t i = 0; i < expected_.size(); ++i)
      line(i == 0 ? "expected" : "",
           fmt::format("{:.0f} {}   — {}: {}, {}, docs/results/{}", expected_[i].rate, expected_[i].unit,
                       expected_[i].card, expected_[i].group, expected_[i].label, expected_[i].file));
    if (expected_.empty()) line("expected", fmt::format("not measured: {}", why_not_));
    if (times_.all.empty()) return out;
    line("measured", fmt::format("{:.4f} ms, {:.4f} to {:.4f}   — {:.1f} TFLOP/s, {:.1f} % of the bound",
                                 times_.median() * 1e3, times_.p10() * 1e3, times_.p90() * 1e3,
                                 teraflops(times_.median()), 100 * bound_.seconds() / times_.median()));
    return out;
  }

  Json json() const {
    Json out{{"device", name()}, {"arch", spec_.arch}};
    out.update(bench_.shape());
    out.update({{"cover", std::string(name_of(kind().cover))},
                {"mod", std::string(name_of(kind().mod))},
                {"length", std::string(name_of(kind().length))},
                {"tiles", tiles()},
                {"notes", notes_}});
    for (const OfWay& one : ways_)
      for (std::size_t i = 0; i < one.considered.candidates.size(); ++i) {
        const runtime::cuda::Candidate& c = one.considered.candidates[i];
        const codegen::Occupancy there = occupancy(c);
        Json phases = Json::array();
        for (const auto& phase : c.binary->phases) phases.push_back({{"name", phase.name}, {"seconds", phase.seconds}});
        out["candidates"].push_back({{"way", std::string(name_of(one.choices.way))},
                                     {"kernel", codegen::variant_of(c.choice.plan).text()},
                                     {"verdict", verdict(one, i)},
                                     {"threads", c.choice.threads},
                                     {"registers", c.binary->registers},
                                     {"spilled", c.binary->spilled},
                                     {"shared_bytes", c.choice.shared_bytes},
                                     {"occupancy",
                                      {{"blocks", there.blocks},
                                       {"warps", there.warps},
                                       {"most_warps", there.most_warps},
                                       {"limited_by", there.limited_by}}},
                                     {"phases", phases},
                                     {"flaw", c.flaw}});
      }
    if (bench_.backward) {
      out["delta_of_o"] = gradient().delta_degree > 0;
      out["captured"] = Json::array();
      for (const CapturedSums& one : captured_)
        out["captured"].push_back({{"name", one.name},
                                   {"how", one.how},
                                   {"elements", one.elements},
                                   {"bytes", static_cast<std::size_t>(one.bytes)}});
    }
    out["bound"] = {{"card", std::string(card_.name)},
                    {"flop", flop_},
                    {"visited_flop", 2 * work_.visited * (work_.d + work_.dv)},
                    {"specials_a_pair", work_.specials},
                    {"randoms_a_pair", work_.randoms},
                    {"bytes", work_.bytes},
                    {"bytes_needed", needed()},
                    {"bytes_of_card", card_.bytes},
                    {"products_by", work_.products == codegen::Products::mma ? "mma.sync" : "wgmma"},
                    {"products_tflops", peak(work_.products)},
                    {"products_seconds", bound_.products},
                    {"exponent_seconds", bound_.exponentials},
                    {"random_seconds", bound_.random},
                    {"memory_seconds", bound_.memory},
                    {"seconds", bound_.seconds()},
                    {"tflops", flop_ / bound_.seconds() / 1e12},
                    {"by", std::string(bound_.by())}};
    out["expected"] = Json::array();
    for (const Measured& one : expected_)
      out["expected"].push_back({{"card", one.card},
                                 {"rate", one.rate},
                                 {"unit", one.unit},
                                 {"file", one.file},
                                 {"row", one.group + ": " + one.label}});
    if (expected_.empty()) out["not_measured"] = why_not_;
    if (!times_.all.empty())
      out["measured"] = {{"runs", times_.all.size()},
                         {"seconds", times_.json()},
                         {"tflops", flop_ / times_.median() / 1e12},
                         {"percent_of_bound", 100 * bound_.seconds() / times_.median()}};
    return out;
  }

  codegen::Occupancy occupancy(const runtime::cuda::Candidate& c) const {
    return codegen::occupancy(spec_.arch, c.choice.threads, c.binary->registers, c.choice.shared_bytes);
  }

  static const codegen::KernelPlan& chosen_of(const OfWay& way) {
    return way.considered.candidates[way.considered.chosen].choice.plan;
  }

  /// The results of docs/results that are of such calls; else why there are none.
  void expect(const compiler::LoweredMod& lowered) {
    std::vector<std::string> kernels;
    for (const OfWay& one : ways_) kernels.emplace_back(chosen_of(one).kernel->name);
    const auto kind = kind_of_mod(lowered, bench_.backward ? &gradient() : nullptr);
    if (!kind) {
      why_not_ = "the mod is of several kinds of attune support";
      return;
    }
    const auto is_alike = [&](const Measured& one) {
      const std::string width = spec_.d == spec_.dv ? std::to_string(spec_.d) : fmt::format("{}/{}", spec_.d, spec_.dv);
      const std::string type = bench_.cache_dtype ? bench_.dtype + "/" + *bench_.cache_dtype : bench_.dtype;
      return spec_.arch == 90 && !bench_.unusually_exact() && one.mod == *kind && one.dtype == type &&
             one.width == width && one.call == direction() && one.layout == layout();
    };
    for (Measured& one : tools::measured())
      if (is_alike(one)) expected_.push_back(std::move(one));
    if (!expected_.empty() && support_rows(asked(expected_[0])).at(0).kernels != kernels) {
      why_not_ = fmt::format("docs/results has such calls with another kernel than {}", fmt::join(kernels, " + "));
      expected_.clear();
      return;
    }
    why_not_ = fmt::format("docs/results has no {} {} D={}/{} {} with a mod of the kind `{}`", direction(),
                           bench_.dtype, spec_.d, spec_.dv, layout(), *kind);
  }

  /// For the chosen kernel.
  void work_bounds(const compiler::Mod& mod, const std::optional<std::string>& card) {
    const codegen::KernelPlan& plan = chosen_of(ways_.back());
    if (bench_.backward)
      for (const CapturedSums& one : captured_)
        if (!one.of_ds) sums_ += one.bytes;
    Data data;
    const Case one = std::move(bench_cases(bench_, data).at(0));
    for (const Owned& capture : one.captures)
      captures_ += static_cast<double>(capture.tensor.size()) * static_cast<double>(size_of(capture.tensor.dtype));
    flop_ = flop_of(one, bench_);
    // Three of a backward's five products have the width of q and k; one of a forward's two.
    const double of_d = bench_.backward ? 3 : 1, of_dv = bench_.backward ? 2 : 1;
    work_ = {.dtype = spec_.dtype,
             .visited = visited_pairs(one, bench_, plan.tile.queries(), plan.tile.n),
             .d = of_d * static_cast<double>(spec_.d),
             .dv = of_dv * static_cast<double>(spec_.dv),
             .specials = codegen::special_functions(mod),
             .randoms = codegen::random_numbers(mod),
             .bytes = (bench_.backward ? 2 : 1) * tensor_bytes(bench_) + 2 * sums_,
             .exact = spec_.exact,
             .products = plan.kernel->products};
    card_ = codegen::card(spec_.arch, there_ ? std::string_view(runtime::cuda::facts(0).name)
                                             : std::string_view(card ? *card : ""));
    if (there_) card_.multiprocessors = runtime::cuda::facts(0).sms;
    bound_ = codegen::bound(card_, work_);
  }

  void measure(const codegen::Preference* preference) {
    if (!there_)
      throw misused("--measure",
                    call_.arch ? "--arch names a GPU that may not be in this machine"
                               : "there is no GPU here to measure on",
                    "leave --measure out, or write --target cpu");
    constexpr double seconds = 0.3;
    Data data(Device::cuda());
    const ForwardTensors tensors(bench_, data);
    const Case one = std::move(bench_cases(bench_, data).at(0));
    runtime::run(one.attention, tensors.call(), bench_.backward ? nullptr : preference);
    if (!bench_.backward) {
      times_.all = runtime::cuda::times(data.device().index, seconds,
                                        [&] { runtime::run(one.attention, tensors.call(), preference); });
    } else {
      const BackwardTensors more(bench_, data);
      CapturedGradients captured;
      if (!captured_.empty()) captured = CapturedGradients(one.attention, data);
      Backward call = more.call(tensors);
      for (std::size_t i = 0; i < captured.names.size(); ++i)
        if (std::ranges::find(captured_, captured.names[i], &CapturedSums::name) != captured_.end())
          call.captured.push_back(captured.captured[i]);
      runtime::run(one.attention, call, preference);
      times_.all = runtime::cuda::times(data.device().index, seconds,
                                        [&] { runtime::run(one.attention, call, preference); });
    }
    std::ranges::sort(times_.all);
  }

  /// TFLOP/s.
  double peak(codegen::Products by) const { return card_.flops(spec_.dtype, spec_.exact, by) / 1e12; }
  /// A remark if the kernel cannot use the card's fastest tensor core instructions; else empty.
  std::string instruction() const {
    if (work_.products != codegen::Products::mma || card_.by_mma == 1) return "";
    return fmt::format(" by mma.sync; the card has {:.0f} by instructions that this kernel does not use",
                       peak(codegen::Products::wgmma));
  }
  /// The memory of the call's tensors, and of the sums of captured gradients.
  double needed() const { return work_.bytes - sums_ + (captured_.empty() ? 1 : 2) * captures_; }
  bool fits() const { return needed() <= card_.bytes; }
  std::string_view direction() const {
    return bench_.backward ? "backward" : bench_.decode && bench_.seq == 1 ? "decode" : "forward";
  }
  std::string_view layout() const {
    return bench_.page_size                                                  ? "paged"
           : !bench_.kv_lengths.empty() || (bench_.decode && bench_.seq > 1) ? "lengths"
           : call_.as_packed                                                 ? "packed"
                                                                             : "dense";
  }
  /// The kind of calls that a row measures.
  static Asked asked(const Measured& of) {
    Asked out;
    const std::array<std::string_view, axes> words{"90", of.call, of.dtype, of.width, of.layout, of.mod};
    for (std::size_t axis = 0; axis < axes; ++axis) {
      const auto values = values_of(static_cast<Axis>(axis));
      out[axis] = {static_cast<std::size_t>(std::ranges::find(values, words[axis]) - values.begin())};
    }
    return out;
  }
  /// The numbers of queries and keys, and their positions.
  std::string where() const {
    std::string out = bench_.lengths_text();
    if (out.ends_with(',')) out.pop_back();
    return bench_.first_query() == 0 ? out : fmt::format("{}, the first query at {}", out, bench_.first_query());
  }

  std::string name() const { return there_ ? runtime::cuda::facts(0).name : "a GPU that is not in this machine"; }
  static std::string verdict(const OfWay& of, std::size_t i) {
    return i == of.considered.chosen ? "chosen" : i < of.considered.chosen ? "skipped" : "unused";
  }
  std::string tiles() const {
    switch (kind().cover) {
      case codegen::CoverKind::full: return "all, and all of them full";
      case codegen::CoverKind::listed:
        return "from tile lists that a separate kernel writes in each call, or once for a cover";
      case codegen::CoverKind::pairs: return "all, and the mask is evaluated for each pair";
      case codegen::CoverKind::causal:
      case codegen::CoverKind::window: break;
    }
    return "within the bands along kv, above: full where nothing drops";
  }

  const DeviceCall& call_;
  BenchOptions bench_;
  bool there_;
  codegen::KernelSpec spec_;  ///< of the forward
  std::vector<OfWay> ways_;
  std::vector<CapturedSums> captured_;
  std::vector<std::string> notes_;
  double flop_ = 0;
  double sums_ = 0;      ///< bytes of exact sums
  double captures_ = 0;  ///< bytes of captured tensors
  std::vector<Measured> expected_;
  std::string why_not_;  ///< while expected_ is empty
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
