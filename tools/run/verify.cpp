// tools/run/verify.cpp — attune verify: compares an engine with the oracle, on small random calls
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "compiler/lower.h"
#include "compiler/trace.h"
#include "runtime/attention/tools.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/oracle/verify.h"
#include "runtime/machine/tensor.h"
#include "runtime/platform/emulated/emulated.h"
#include "tools/measure/bench.h"
#include "tools/options/text.h"
#include "tools/output/output.h"
#include "tools/output/progress.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;

struct VerifyOptions {
  BenchOptions what;  ///< rows, expressions, target, kernel
  std::vector<std::string> dtypes{"bf16", "f16", "f32"};
  int calls = 12;  ///< of each row
  unsigned seed = 1;
  ProgressOption progress;
};

/// The error of results relative to the oracle's, and the allowed error.
struct Distance {
  double error = 0, allowed = 0;  ///< relative: |x - oracle| by |oracle|, over all elements
  bool right = true;              ///< infinite or NaN exactly where the oracle is
  bool good() const { return right && error <= allowed; }
};

/// A call in f64 and its results.
struct Exact {
  ForwardTensors in;
  BackwardTensors back;
  CapturedGradients captured{};
  std::vector<double> size_of_captured{};  ///< the root of the sum of the squares of all terms' parts
};

/// One result and its distance from the oracle.
struct Compared {
  std::string name;
  Distance distance;
};

class Verify {
 public:
  explicit Verify(const VerifyOptions& o)
      : o_(o), device_(o.what.target == "cuda" ? Device::cuda() : Device::cpu()), dice_(o.seed) {
    preference_ = preference_of(o.what);
  }

  void operator()() {
    std::vector<std::string> rows = o_.what.rows;
    const TextOptions& text = o_.what.text;
    const bool own = text.given();
    if (own)
      rows = {"own"};
    else if (rows.empty())
      rows = bench_rows();
    progress_.emplace(o_.progress.style(), "verify", rows.size() * static_cast<std::size_t>(o_.calls));
    for (const std::string& row : rows)
      for (int i = 0; i < o_.calls; ++i) {
        fitting(row, static_cast<std::size_t>(i), own);
        progress_->step(row);
      }
    progress_.reset();
    if (!o_.what.json) print_out("{} calls, {} wrong, {} refused\n", calls_, wrong_, refused_);
    if (!o_.what.json && outside_.count > 0)
      print_out("{} reads of captured tensors were out of range, and clamped, in {} calls; the first: {}\n",
                outside_.count, calls_outside_, outside_.first);
    if (wrong_ > 0)
      for (const std::string& doubt : runtime::emulated::take_doubts()) print_out("doubt: {}\n", doubt);
    if (wrong_ > 0) throw Bug(fmt::format("{} of {} calls differ from the oracle", wrong_, calls_));
    if (calls_ == 0)
      throw Error("bad-kernel", "no call was computed", {.name = o_.what.kernel.value_or("")},
                  "the requested kernel supports none of them", "name another, or leave --kernel out");
  }

 private:
  std::int64_t number(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(dice_);
  }

  /// A call no larger than the captured tensors allow: the user's tensors may be small.
  void fitting(const std::string& row, std::size_t i, bool own) {
    constexpr int smallest = 8;
    for (int halved = 0;; ++halved) {
      BenchOptions shape = drawn(i, halved);
      if (!own) shape.rows = {row};
      try {
        return one(row, shape);
      } catch (const Error& e) {
        if (e.code != "capture-range" || halved == smallest) throw;
      }
    }
  }

  /// `halved`: how many times sizes were too large and were halved.
  BenchOptions drawn(std::size_t i, int halved) {
    constexpr std::array<std::int64_t, 4> widths{64, 128, 64, 128};
    BenchOptions o = o_.what;
    o.dtype = o_.dtypes[i % o_.dtypes.size()];
    const std::int64_t longest = 300 >> halved;
    o.batch = halved < 2 ? number(1, 2) : 1;
    o.kv_heads = halved < 2 ? number(1, 2) : 1;
    o.heads = *o.kv_heads * (halved < 4 ? number(1, 3) : 1);
    o.seq = number(0, 3) ? number(1, longest) : number(1, std::min<std::int64_t>(5, longest));
    o.kv_seq = number(0, 1) ? o.seq : number(1, longest);
    // Widths that people use, and others.
    o.d = number(0, 2) ? widths[static_cast<std::size_t>(number(0, 3))] : number(1, 32) * (number(0, 1) ? 8 : 7);
    o.dv = number(0, 3) ? o.d : number(1, 32) * 8;
    return o;
  }

  /// The same numbers in f64. With `noise`, each is rounded once more, at random, by up to half a unit of its type.
  Owned exact(const Owned& from, double noise) {
    Data host;
    const Tensor& t = from.tensor;
    std::uniform_real_distribution<double> half(-noise, noise);
    return host.fill(DType::f64, {t.shape.begin(), t.shape.begin() + t.rank},
                     [&](std::int64_t i) { return runtime::load(t, i) * (1 + half(dice_)); });
  }

  static Owned zeros_like(const Owned& t) { return Data().zeros(DType::f64, t.tensor); }

  Exact oracle(const Attention& attention, const ForwardTensors& from, const BackwardTensors& back, double noise,
               float of_scores = 0) {
    Exact out{from, back};
    for (Owned* one : {&out.in.q, &out.in.k, &out.in.v}) *one = exact(*one, noise);
    for (Owned* one : {&out.in.o, &out.in.lse}) *one = zeros_like(*one);
    Attention exactly = attention;
    exactly.target = Target::oracle;
    // Scores have an error too: one or two roundings in f32.
    if (noise > 0)
      exactly.score = attention.score |
                      Score([of_scores](Float s, At) { return s * (1.0f + (random(20260101) - 0.5f) * of_scores); });
    exactly.run(out.in.call());
    if (o_.what.backward) backward(exactly, noise, out);
    return out;
  }

  /// Fills in the gradients.
  void backward(const Attention& exactly, double noise, Exact& out) {
    out.back.grad_o = exact(out.back.grad_o, noise);
    for (Owned* one : {&out.back.dq, &out.back.dk, &out.back.dv}) *one = zeros_like(*one);
    out.captured = CapturedGradients(exactly, Data(), DType::f64);
    Backward call = out.back.call(out.in);
    call.o = call.lse = {};  // the oracle computes the forward again
    call.captured = out.captured.captured;
    exactly.backward(call);
    if (call.captured.empty() || noise > 0) return;
    const compiler::LoweredMod lowered = compiler::lower(exactly);
    for (const runtime::CapturedSum& sum :
         runtime::oracle_gradients(runtime::call_of(lowered, call, compiler::check(lowered, call, exactly.scale))))
      out.size_of_captured.push_back(std::sqrt(std::accumulate(sum.part_squares.begin(), sum.part_squares.end(), 0.0)));
  }

  /// The allowed error: 1.5 times the effect of one more rounding of inputs and scores, plus a rounding of the result.
  /// `terms`: a lower bound on the size of the terms whose sum the result is; the sum itself may be 0.
  static Distance distance(const Tensor& x, const Tensor& oracle, const Tensor& rounded, double unit,
                           double terms = 0) {
    double error = 0, allowed = 0, size = 0;
    Distance out;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const double a = runtime::load(x, i), b = runtime::load(oracle, i), c = runtime::load(rounded, i);
      if (!std::isfinite(b)) {
        out.right = out.right && (std::isnan(b) ? std::isnan(a) : a == b);
        continue;
      }
      out.right = out.right && std::isfinite(a);
      error += (a - b) * (a - b);
      allowed += (c - b) * (c - b);
      size += b * b;
    }
    const double norm = std::sqrt(std::max({size, terms * terms, std::numeric_limits<double>::min()}));
    out.error = std::sqrt(error) / norm;
    out.allowed = 1.5 * std::sqrt(allowed) / norm + unit;
    return out;
  }

  static double size(const Tensor& t) {
    double squares = 0;
    for (std::int64_t i = 0; i < t.size(); ++i) squares += runtime::load(t, i) * runtime::load(t, i);
    return std::sqrt(squares);
  }

  void one(const std::string& row, const BenchOptions& shape) {
    Data host, there(device_);
    const Case on_host = std::move(bench_cases(shape, host).at(0)), here = std::move(bench_cases(shape, there).at(0));
    Data numbers;
    const ForwardTensors in(shape, numbers);
    // Half a unit in the last place; for f32, the precision of three products of TF32, or of one.
    const bool one_product = shape.dtype == "f32" && shape.unusually_exact();
    const double unit = shape.dtype == "bf16"  ? 0x1p-9
                        : shape.dtype == "f16" ? 0x1p-12
                        : one_product          ? 0x1p-11
                                               : 0x1p-21;
    ForwardTensors tensors = in;
    for (Owned* t : {&tensors.q, &tensors.k, &tensors.v, &tensors.o, &tensors.lse}) *t = moved(*t, device_);
    BackwardTensors in_back, back;
    if (o_.what.backward) in_back = BackwardTensors(shape, numbers);
    back = in_back;
    for (Owned* t : {&back.grad_o, &back.dq, &back.dk, &back.dv})
      if (t->tensor.given()) *t = moved(*t, device_);
    CapturedGradients captured;
    if (o_.what.backward) captured = CapturedGradients(here.attention, there, DType::f32);
    Backward backward = back.call(tensors);
    backward.captured = captured.captured;
    std::string kernel;
    try {
      kernel = computed(here.attention, tensors.call(), backward);
    } catch (const Error& e) {
      // Some random calls do not suit the kernel that the user asked for.
      if (!preference_ || e.code != "bad-kernel") throw;
      ++refused_;
      return;
    }
    count_outside(on_host.attention, in.call());
    const auto fetched = [](const Owned& t) { return moved(t, Device::cpu()); };
    const Exact exactly = oracle(on_host.attention, in, in_back, 0),
                rounded = oracle(on_host.attention, in, in_back, unit, one_product ? 0x1p-10f : 0x1p-22f);
    const Owned o = fetched(tensors.o), lse = fetched(tensors.lse);
    std::vector<Compared> all{{"o", distance(o.tensor, exactly.in.o.tensor, rounded.in.o.tensor, unit)},
                              {"lse", distance(lse.tensor, exactly.in.lse.tensor, rounded.in.lse.tensor, 0x1p-20)}};
    if (o_.what.backward) {
      // P and dS are rounded once more, and o is rounded where delta reads it.
      const double more = 4 * unit;
      const auto add = [&](const std::string& name, const Owned& got, const Owned& wanted, const Owned& noisy,
                           double terms = 0) {
        const Owned here_now = fetched(got);
        all.push_back({name, distance(here_now.tensor, wanted.tensor, noisy.tensor, more, terms)});
      };
      // For a row with one key, dq and dk are 0, but their terms are about as large as those of dv.
      const double size_of_dv = size(exactly.back.dv.tensor);
      add("dq", back.dq, exactly.back.dq, rounded.back.dq, size_of_dv);
      add("dk", back.dk, exactly.back.dk, rounded.back.dk, size_of_dv);
      add("dv", back.dv, exactly.back.dv, rounded.back.dv);
      for (std::size_t i = 0; i < captured.names.size(); ++i)
        add(captured.names[i], captured.memory[i], exactly.captured.memory[i], rounded.captured.memory[i],
            exactly.size_of_captured[i]);
    }
    ++calls_;
    wrong_ += !std::ranges::all_of(all, [](const Compared& one) { return one.distance.good(); });
    tell(row, shape, kernel, all);
  }

  /// Computes the call on the device. Returns the names of the kernels, on a GPU.
  std::string computed(const Attention& attention, const Forward& forward, const Backward& backward) const {
    if (device_.kind == Device::Kind::cpu) {
      attention.run(forward);
      if (o_.what.backward) attention.backward(backward);
      return {};
    }
    const codegen::Preference* preference = preference_ ? &*preference_ : nullptr;
    // When the backward is verified, the user's kernel is one of the backward.
    const codegen::Preference* const of_forward = o_.what.backward ? nullptr : preference;
    runtime::run(attention, forward, of_forward);
    if (o_.what.backward) runtime::run(attention, backward, preference);
    const runtime::What last = o_.what.backward ? runtime::What(backward) : forward;
    std::string names;
    for (const auto& one : runtime::stories(attention, last, preference))
      names += (names.empty() ? "" : " ") + one.variant.text();
    return names;
  }

  void count_outside(const Attention& attention, const Forward& call) {
    const compiler::LoweredMod written = runtime::as_written(compiler::trace(attention));
    const compiler::Problem problem = compiler::check(written, call, attention.scale);
    const runtime::OutsideReads found = runtime::outside_reads(written.mod, runtime::call_of(written, call, problem));
    if (found.count == 0) return;
    if (outside_.count == 0) outside_ = {0, found.name, found.first};
    outside_.count += found.count;
    ++calls_outside_;
  }

  void tell(const std::string& row, const BenchOptions& s, const std::string& kernel,
            const std::vector<Compared>& all) {
    progress_->wipe();
    const bool good = std::ranges::all_of(all, [](const Compared& one) { return one.distance.good(); });
    if (o_.what.json) {
      Json line{{"row", row}};
      line.update(s.shape());
      line["kernel"] = kernel;
      for (const auto& [name, d] : all)
        line[name] = {{"error", d.error}, {"allowed", d.allowed}, {"infinities", d.right}};
      line["good"] = good;
      write_json(line);
    } else {
      std::string distances;
      for (const auto& [name, d] : all)
        distances += fmt::format("  {} {:.2e} of {:.2e}{}", name, d.error, d.allowed,
                                 d.right ? "" : " and infinite or NaN elsewhere");
      print_out("{:<5}  {:<9} {:<4} B={} H={}/{} S={:>3}x{:<3} D={:>3}/{:<3}{}  {}\n", good ? "good" : "WRONG", row,
                s.dtype, s.batch, s.heads, s.of_kv_heads(), s.seq, s.of_kv_seq(), s.d, s.of_dv(), distances, kernel);
    }
    flush_out();
  }

  const VerifyOptions& o_;
  Device device_;
  std::mt19937 dice_;
  std::optional<codegen::Preference> preference_;
  int calls_ = 0, wrong_ = 0, refused_ = 0, calls_outside_ = 0;
  runtime::OutsideReads outside_;
  std::optional<Progress> progress_;
};

}  // namespace

void add_verify(CLI::App& app) {
  auto o = std::make_shared<VerifyOptions>();
  CLI::App& verb = *app.add_subcommand("verify", "compares an engine with the oracle on small random calls");
  std::string names;
  for (const std::string& row : bench_rows()) names += (names.empty() ? "" : "|") + row;
  verb.add_option("--row", o->what.rows, "a known attention; all of them if left out")->type_name(names);
  o->what.text.add_to(verb);
  verb.add_option("--target", o->what.target, "the engine")->type_name("auto|cpu|cuda|emulated:ARCH");
  verb.add_option("--dtype", o->dtypes, "of q, k, v and o; each in turn if left out")->type_name("f32|f16|bf16");
  verb.add_option("--calls", o->calls, "of each attention; 12 if left out")->type_name("N");
  verb.add_option("--seed", o->seed, "seed of the random calls; 1 if left out")->type_name("N");
  verb.add_option("--kernel", o->what.kernel, "on a GPU: only this kernel, as in attune bench")
      ->type_name("NAME[:m=N,n=N,...]");
  verb.add_flag("--backward", o->what.backward, "the gradients too, those of captured tensors included");
  o->what.exact.add_to(verb);
  o->progress.add_to(verb);
  verb.add_flag("--json", o->what.json, "one line of JSON for each call");
  verb.footer(
      "Computes calls of random shapes, widths and inputs on an engine and with the oracle, in double "
      "precision. An engine may be off by 1.5 times what one more rounding of q, k, v and the scores does to the "
      "oracle; gradients by four more roundings, those of captured tensors relative to the size of their terms.\n"
      "Examples:\n"
      "  attune verify --row causal --calls 3\n"
      "  attune verify --row alibi --backward --calls 2 --dtype f32\n"
      "  attune verify --target cuda --row causal --dtype bf16 --calls 50\n"
      "Exit:\n"
      "  3  a call was off by more, which is a bug of attune");
  verb.callback([o] {
    take_target(o->what.target);
    o->what.check();
    for (const std::string& dtype : o->dtypes)
      require_word("--dtype", dtype, std::array<std::string, 3>{"f32", "f16", "bf16"});
    require_size("--calls", o->calls, 1, std::numeric_limits<int>::max());
    for (const auto& [option, given] :
         {std::pair{"--kernel", o->what.kernel.has_value()}, {"--exact", o->what.exact.word.has_value()}})
      if (given && o->what.target != "cuda") throw needs_gpu(option);
    tell_doubts(o->what.text);
    Verify{*o}();
  });
}

}  // namespace attune::tools
