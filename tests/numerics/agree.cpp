// tests/numerics/agree.cpp — an engine's results against the oracle's; plain dense attention is the yardstick
#include "tests/numerics/agree.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <limits>
#include <mutex>
#include <set>

#include "compiler/mod.h"
#include "runtime/engines/oracle/oracle.h"
#include "tests/elements.h"
#include "tests/numerics/dense.h"
#include "tests/sanitizers.h"

namespace attune::tests {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
/// Of larger results a partial sum, or a gradient's sum before it is multiplied by the scale, may leave f32.
constexpr double most_of_a_sum = 0x1p120;

struct Output {
  std::string name;
  Placed placed;
  bool logarithm = false;  ///< lse or max: its errors are absolute below 1, and its infinities are exact

  std::size_t width() const {
    const Tensor& t = placed.tensor;
    return logarithm || t.rank == 0 ? 1 : static_cast<std::size_t>(t.shape[static_cast<std::size_t>(t.rank) - 1]);
  }
};
using Outputs = std::vector<Output>;

/// The oracle writes f64, contiguous; all others write the inputs' type and layout.
enum class For : std::uint8_t { oracle, others };

Placed output(const Inputs& in, std::span<const std::int64_t> shape, DType dtype, For whom) {
  const Layout layout = in.shape.layout == Layout::one_head ? Layout::bhsd : in.shape.layout;
  return whom == For::oracle ? place(DType::f64, shape, Layout::bhsd) : place(dtype, shape, layout);
}
std::span<const std::int64_t> extents(const Tensor& t) {
  return std::span(t.shape).first(static_cast<std::size_t>(t.rank));
}

Outputs forward_outputs(const Inputs& in, const Compared& what, For whom) {
  Outputs out;
  out.push_back({"o", output(in, in.shape_of_o(), in.shape.dtype, whom)});
  if (what.lse) out.push_back({"lse", output(in, in.shape_of_lse(), DType::f32, whom), true});
  if (what.max) out.push_back({"max", output(in, in.shape_of_lse(), DType::f32, whom), true});
  return out;
}

Forward forward_call(const Inputs& in, const Outputs& out) {
  Forward call = in.forward();
  for (const Output& o : out) (o.name == "o" ? call.o : o.name == "lse" ? call.lse : call.max) = o.placed.tensor;
  return call;
}

Outputs backward_outputs(const Subject& subject, const Inputs& in, const Compared& what, For whom) {
  Outputs out;
  for (const auto& [name, of] : {std::pair{"dq", &in.q}, {"dk", &in.k}, {"dv", &in.v}})
    out.push_back({name, output(in, extents(of->tensor), in.shape.dtype, whom)});
  const compiler::LoweredMod& lowered = subject.lowered;
  for (std::size_t i = 0; what.captured && i < lowered.slots.captures.size(); ++i)
    if (compiler::type_of(lowered.slots.captures[i].dtype) == ir::Type::F32)
      out.push_back({"gradient of " + lowered.mod.captures[i].name,
                     output(in, extents(lowered.slots.captures[i]), what.captured_type, whom)});
  return out;
}

Backward backward_call(const Subject& subject, const Inputs& in, const Compared& what, const Outputs& out) {
  Backward call = in.backward();
  if (!what.grad_lse) call.grad_lse = {};
  std::size_t next = 0;
  for (Tensor* into : {&call.dq, &call.dk, &call.dv}) *into = out[next++].placed.tensor;
  for (const Tensor& capture : subject.lowered.slots.captures)
    if (what.captured && compiler::type_of(capture.dtype) == ir::Type::F32)
      call.captured.push_back({capture, out[next++].placed.tensor});
  return call;
}

/// |x - oracle| over the elements that are finite in the oracle; infinite if x is not finite there.
double distance(const std::vector<double>& x, const std::vector<double>& oracle) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (std::isfinite(oracle[i])) sum += std::isfinite(x[i]) ? (x[i] - oracle[i]) * (x[i] - oracle[i]) : infinity;
  return std::sqrt(sum);
}
double square(double x, bool logarithm) {
  if (!std::isfinite(x)) return 0;
  return logarithm ? std::max(1.0, x * x) : x * x;
}
double norm(const std::vector<double>& oracle, bool logarithm) {
  double sum = 0;
  for (const double x : oracle) sum += square(x, logarithm);
  return std::sqrt(sum);
}
/// How many rows of equal size would average their errors as these do: where one row is most of the norm, 1. Rows that
/// are not finite do not count in any distance.
double alike_rows(const std::vector<double>& oracle, std::size_t width, bool logarithm) {
  double squares = 0, fourths = 0;
  for (std::size_t from = 0; from < oracle.size(); from += width) {
    double row = 0;
    for (std::size_t i = from; i < from + width; ++i) row += square(oracle[i], logarithm);
    squares += row;
    fourths += row * row;
  }
  return fourths > 0 ? squares / fourths * squares : 1;
}

/// One rounding to a 16-bit type; 0 for others.
double rounding(DType type) { return type == DType::bf16 ? 0x1p-8 : type == DType::f16 ? 0x1p-11 : 0; }

/// One output, as the oracle and dense attention compute it.
struct Results {
  const Output& output;
  std::vector<double> oracle;
  std::vector<std::vector<double>> dense;
  Terms terms{};  ///< that it is a sum of, if known

  double dense_distance() const {
    double most = 0;
    for (const auto& d : dense) most = std::max(most, distance(d, oracle));
    return most;
  }
  double granted(DType type) const {
    const auto finite = std::count_if(oracle.begin(), oracle.end(), [](double x) { return std::isfinite(x); });
    const double rows = alike_rows(oracle, output.width(), output.logarithm);
    const double size = norm(oracle, output.logarithm);
    const double denormals = 0x1p-126 * (std::sqrt(static_cast<double>(finite)) + terms.flushed);
    return 1.5 * dense_distance() + 4 * 0x1p-23 * std::max(size, terms.apart) +
           rounding(type) * std::max(size / std::sqrt(rows), terms.whole) + terms.operands + denormals;
  }
  /// Whether x must match the oracle's infinity or NaN here.
  bool is_odd(std::size_t i) const {
    return !std::isfinite(oracle[i]) &&
           std::none_of(dense.begin(), dense.end(), [&](const auto& d) { return std::isfinite(d[i]); });
  }
};

/// For infinities and NaN.
bool is_as_odd(const Output& output, double x, double oracle) {
  if (!output.logarithm) return !std::isfinite(x);
  // Whether NaN or inf is the larger is left open.
  return x == oracle || (std::isnan(oracle) && (std::isnan(x) || (output.name == "max" && x == infinity)));
}

std::string where(const Results& r, std::size_t i, const std::vector<double>& x) {
  return fmt::format("element {} is {}, of the oracle {}, of dense attention {}", i, x[i], r.oracle[i], r.dense[0][i]);
}

std::string fault(const Results& r, const std::vector<double>& x, DType type, Verdict& verdict) {
  double worst = -1;
  std::size_t at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(r.oracle[i]) && !std::isfinite(x[i])) return where(r, i, x);
    if (r.is_odd(i) && !is_as_odd(r.output, x[i], r.oracle[i])) return where(r, i, x);
    const double error = std::abs(x[i] - r.oracle[i]);
    if (std::isfinite(r.oracle[i]) && error > worst) {
      worst = error;
      at = i;
    }
  }
  const double error = distance(x, r.oracle), granted = r.granted(type), size = norm(r.oracle, r.output.logarithm);
  if (size > 0) verdict.engine_error = std::max(verdict.engine_error, error / size);
  if (error > 0) verdict.used = std::max(verdict.used, error / granted);
  if (error <= granted) return {};
  return fmt::format("error {:.3g}, of dense attention {:.3g}, granted {:.3g}; {}", error / size,
                     r.dense_distance() / size, granted / size, where(r, at, x));
}

/// One direction: `run` fills outputs that `make` made.
class Comparison {
 public:
  Comparison(const Inputs& in, const Compared& what, Verdict& verdict) : in_(in), what_(what), verdict_(verdict) {}

  /// `terms`: for the last outputs.
  void truth(Outputs oracle, const std::vector<Outputs>& dense, const std::vector<Terms>& terms = {}) {
    oracle_ = std::move(oracle);
    for (std::size_t i = 0; i < oracle_.size(); ++i) {
      Results r{oracle_[i], elements(oracle_[i].placed.tensor), {}};
      if (i + terms.size() >= oracle_.size()) r.terms = terms[i + terms.size() - oracle_.size()];
      for (const Outputs& d : dense) r.dense.push_back(elements(d[i].placed.tensor));
      for (const double x : r.oracle)
        if (std::isfinite(x) && (r.output.logarithm || std::abs(x) > most_of_a_sum))
          verdict_.largest = std::max(verdict_.largest, r.output.logarithm ? std::abs(x) : infinity);
      const double size = norm(r.oracle, r.output.logarithm), error = r.dense_distance();
      if (error > 0) verdict_.dense_error = std::max(verdict_.dense_error, size > 0 ? error / size : infinity);
      results_.push_back(std::move(r));
    }
  }

  void engine(const std::string& name, const Outputs& out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::vector<double> x = elements(out[i].placed.tensor);
      if (what_.observe)
        what_.observe({out[i].name, std::string(name_of(out[i].placed.tensor.dtype)), x, results_[i].oracle,
                       results_[i].granted(in_.shape.dtype)});
      const std::string wrong = fault(results_[i], x, in_.shape.dtype, verdict_);
      if (!wrong.empty()) tell(name, out[i].name + ": " + wrong);
      if (!out[i].placed.gaps_untouched()) tell(name, out[i].name + ": written beside its elements");
    }
  }

  void tell(const std::string& engine, const std::string& wrong) {
    verdict_.wrong += fmt::format("{}, {}\n  {}\n", engine, in_.shape.describe(), wrong);
  }

 private:
  const Inputs& in_;
  const Compared& what_;
  Verdict& verdict_;
  Outputs oracle_;
  std::vector<Results> results_;
};

std::string text(const Subject& subject) {
  std::string out = subject.written.mod.text();
  for (const auto& param : subject.written.slots.params) out += fmt::format("{} = {}\n", param->name, param->value);
  return out;
}

/// What an engine computed, or what it threw.
struct Answer {
  std::string engine;
  Outputs out;
  std::string thrown;
};
template <class Run>
Answer answer(const Engine& engine, Outputs out, const Run& run) {
  try {
    run();
  } catch (const std::exception& e) {
    return {engine.name, {}, e.what()};
  }
  return {engine.name, std::move(out), {}};
}

/// What dense attention makes of the yardsticks, for Comparison::truth.
struct Measured {
  std::vector<Outputs> dense;
  std::vector<Terms> terms;
};

/// Judges the answers. A larger error of dense attention allows more, so what is right by the first yardstick and the
/// first of the steps is right by all of them, and these are most of a comparison's time: `measure(yardsticks, steps)`
/// is asked for all only if something is wrong by the first.
template <class Measure>
void judge_answers(const Inputs& in, const Compared& what, const Outputs& oracle, const std::vector<Answer>& answers,
                   Yardsticks yardsticks, std::span<const int> steps, const Measure& measure, Verdict& verdict) {
  for (const bool whole : {false, true}) {
    // An observer gets the full allowance.
    if (!whole && what.observe) continue;
    Verdict own;
    Comparison comparison(in, what, own);
    const Measured by = whole ? measure(yardsticks, steps) : measure(yardsticks.first(1), steps.first(1));
    comparison.truth(oracle, by.dense, by.terms);
    for (const Answer& one : answers)
      if (one.thrown.empty())
        comparison.engine(one.engine, one.out);
      else
        comparison.tell(one.engine, "threw: " + one.thrown);
    if (!whole && !own.wrong.empty()) continue;
    verdict.wrong += own.wrong;
    for (double Verdict::*const of : {&Verdict::dense_error, &Verdict::engine_error, &Verdict::used, &Verdict::largest})
      verdict.*of = std::max(verdict.*of, own.*of);
    return;
  }
}

/// Prints each reason once. Not a skip, which would skip the whole test.
void tell_left_out(const Engine& engine, const std::string& why) {
  static std::mutex one;
  static std::set<std::string> told;
  const std::lock_guard lock(one);
  const std::string line = fmt::format("[left out] {} does not take {}\n", engine.name, why);
  if (told.insert(line).second) std::printf("%s", line.c_str());
}

/// Compares the engines with these products of e4m3, which share one yardstick.
void compare_forward(const Subject& subject, const Inputs& in, std::span<const Engine> engines, const Compared& what,
                     Yardsticks yardsticks, bool products_of_e4m3, Verdict& verdict) {
  const auto is_for = [&](const Engine& engine) {
    return !in.shape.e4m3 || engine.products_of_e4m3 == products_of_e4m3;
  };
  if (std::ranges::none_of(engines, is_for)) return;
  const DType products = !in.shape.e4m3 ? in.shape.dtype : products_of_e4m3 ? DType::e4m3 : DType::f32;
  const auto made = [&](For whom) { return forward_outputs(in, what, whom); };
  const Outputs oracle = made(For::oracle);
  const compiler::Problem problem = compiler::check(subject.lowered, forward_call(in, oracle), subject.scale);
  runtime::oracle_forward(runtime::call_of(subject.written, forward_call(in, oracle), problem));
  std::vector<Answer> answers;
  for (const Engine& engine : engines) {
    if (!is_for(engine)) continue;
    if (const std::string why = engine.why_not(in.shape); !why.empty()) {
      tell_left_out(engine, why);
      continue;
    }
    const Outputs out = made(For::others);
    answers.push_back(answer(engine, out, [&] { engine.forward(subject, forward_call(in, out), problem); }));
  }
  constexpr std::array once{0};
  judge_answers(
      in, what, oracle, answers, yardsticks, once,
      [&](Yardsticks some, std::span<const int>) {
        Measured by{.dense = {}, .terms = std::vector<Terms>(oracle.size())};  // o is the first
        for (const Subject* one : some) {
          by.dense.push_back(made(For::others));
          by.terms.front() = dense_forward(one->written, forward_call(in, by.dense.back()), problem, products,
                                           one == some.back());
        }
        return by;
      },
      verdict);
}

void compare_backward(const Subject& subject, const Inputs& in, std::span<const Engine> engines, const Compared& what,
                      Yardsticks yardsticks, Verdict& verdict) {
  const auto made = [&](For whom) { return backward_outputs(subject, in, what, whom); };
  const auto call = [&](const Outputs& out) { return backward_call(subject, in, what, out); };
  const Outputs oracle = made(For::oracle);
  const compiler::Problem problem = compiler::check(subject.lowered, call(oracle), subject.scale);
  runtime::oracle_backward(runtime::call_of(subject.lowered, call(oracle), problem));
  std::vector<Answer> answers;
  for (const Engine& engine : engines) {
    if (!engine.backward || std::max(problem.d, problem.dv) > engine.widest) continue;
    const Outputs out = made(For::others), given = what.gives_o ? forward_outputs(in, what, For::others) : Outputs();
    answers.push_back(answer(engine, out, [&] {
      Backward asked = call(out);
      if (what.gives_o) {
        const Forward before = forward_call(in, given);
        engine.forward(subject, before, compiler::check(subject.lowered, before, subject.scale));
        asked.o = before.o;
        asked.lse = before.lse;
      }
      engine.backward(subject, asked, compiler::check(subject.lowered, asked, subject.scale));
    }));
  }
  constexpr std::array lse_steps{0, 2, -2};
  judge_answers(
      in, what, oracle, answers, yardsticks, lse_steps,
      [&](Yardsticks some, std::span<const int> steps) {
        Measured by;
        for (const Subject* one : some)
          for (const int step : steps) {
            by.dense.push_back(made(For::others));
            by.terms = dense_backward(one->lowered, call(by.dense.back()), problem, step, &some.front()->lowered,
                                      one == some.back() && step == steps.back());
          }
        return by;
      },
      verdict);
}

}  // namespace

Verdict compare(const Subject& subject, const Inputs& in, std::span<const Engine> engines, const Compared& what,
                Yardsticks yardsticks) {
  Verdict verdict;
  // Without an engine, as without a device, there is nothing to compare.
  if (engines.empty()) return verdict;
  const std::array own{&subject};
  if (yardsticks.empty()) yardsticks = own;
  if (what.forward) compare_forward(subject, in, engines, what, yardsticks, false, verdict);
  if (what.forward && in.shape.e4m3) compare_forward(subject, in, engines, what, yardsticks, true, verdict);
  if (what.backward) compare_backward(subject, in, engines, what, yardsticks, verdict);
  if (!verdict.wrong.empty()) verdict.wrong = text(subject) + verdict.wrong;
  return verdict;
}

std::string disagreement(const Attention& attention, const Inputs& in, const Compared& what) {
  std::span<const Engine> asked = engines();
  if (sanitized && !asked.empty()) {
    // The host code is the same for all engines, and the generated code is not sanitized.
    static std::size_t calls = 0;
    asked = asked.subspan(calls++ % asked.size(), 1);
  }
  const Verdict verdict = compare(Subject(attention), in, asked, what);
  if (verdict.dense_error >= 0.1)
    return text(Subject(attention)) +
           fmt::format("{}\n  dense attention is off by {}: no yardstick\n", in.shape.describe(), verdict.dense_error);
  return verdict.wrong;
}

std::string disagreement(const Attention& attention, const Shape& shape, const Compared& what) {
  return disagreement(attention, inputs(shape), what);
}

}  // namespace attune::tests
