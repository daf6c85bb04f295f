// runtime/engines/oracle/verify_backward.cpp — ATTUNE_VERIFY: computes some rows of dq, dk and dv again and compares
// them
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "codegen/facts/parts.h"
#include "runtime/engines/merge.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/oracle/verify_rows.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

using compiler::Problem;
using ir::Precision;

/// For f32, relative: two units in the last place.
constexpr double unit_of_sums = 0x1p-22;

/// For a derivative in f32 that is not large: 1 - tanh(x)^2 and its like are differences of numbers near 1.
constexpr double unit_of_derivatives = 0x1p-22;

/// The rounding step of an lse that is read or subtracted in f32. A row without kept keys has no finite lse.
double step_of(double lse) { return std::isfinite(lse) ? unit_of_sums * std::max(1.0, std::abs(lse)) : 0; }

/// The values that all pairs of a query's row need: exact, and with the error that a backward may have. The oracle's
/// backward has the equations.
struct QueryRow {
  double lse = 0, lse_by = 0;
  double delta = 0, delta_by = 0;
  double dlse = 0;
};

/// The terms that a pair adds to gradients; `_by` is one standard deviation of the rounding error.
struct Pair {
  std::int64_t kv;
  double p = 0, by = 0;
  double after = 0, after_by = 0;  ///< prob of p
  double dp = 0, dp_by = 0;
  double slope = 0, slope_by = 0;  ///< of the score by q . k
  // In f32, as in plain dense attention:
  float plain_p = 0, plain_after = 0, plain_dp = 0, plain_slope = 0;
};

/// Rows of a result while they are summed.
struct Sum {
  std::vector<double> exact, luck;
  std::vector<float> plain;

  explicit Sum(std::int64_t width) : exact(static_cast<std::size_t>(width)), luck(exact.size()), plain(exact.size()) {}
  void add(double x, double by, float of_plain, std::span<const double> row) {
    for (std::size_t j = 0; j < exact.size(); ++j) {
      exact[j] += x * row[j];
      luck[j] += by * row[j] * (by * row[j]);
      plain[j] += of_plain * static_cast<float>(row[j]);
    }
  }
};

double squared(double x) { return x * x; }

class VerifyBackward {
 public:
  VerifyBackward(const Call& of, const Verified& which)
      : of_(of), call_(of.backward()), p_(of.problem), which_(which),
        unit_of_functions_(is_fast(of, which) ? 0x1p-11 : unit_of_derivatives), forward_{.q = call_.q,
                                                                                         .k = call_.k,
                                                                                         .v = call_.v},
        oracle_({.mod = of.mod, .args = of.args, .problem = of.problem, .what = forward_}),
        delta_degree_(codegen::delta_degree(of.mod.mod.prob)), type_(call_.q.dtype) {}

  void operator()() {
    if (call_.dq.given()) queries();
    if (call_.dk.given() || call_.dv.given()) keys();
  }

 private:
  // ---- Rows of queries.

  std::span<const double> read(const Tensor& t, const RowAt& at, std::int64_t width, std::vector<double>& into) const {
    const MatrixLayout place = matrix(t, p_.q.layout, at.b, at.h, sequence(p_, at.b).q_start);
    into.clear();
    for (std::int64_t j = 0; j < width; ++j)
      into.push_back(load(t, place.origin + at.i * place.row + j * place.column));
    return into;
  }
  double read(const Tensor& t, const RowAt& at) const {
    const MatrixLayout place = column(t, p_.q.layout, at.b, at.h, sequence(p_, at.b).q_start);
    return load(t, place.origin + at.i * place.row);
  }

  /// Makes this the current row.
  void enter(const RowAt& at) {
    oracle_.enter(at.b, at.h, at.i);
    read(call_.grad_o, at, p_.dv, grad_o_);
  }

  /// True if lse and delta follow from the call's tensors, without the row's other keys.
  bool knows_lse() const { return call_.o.given(); }
  bool knows_delta() const { return call_.o.given() && delta_degree_ > 0; }

  QueryRow query_row(const RowAt& at) {
    QueryRow out;
    if (call_.grad_lse.given()) out.dlse = read(call_.grad_lse, at);
    if (knows_lse()) {
      out.lse = read(call_.lse, at);
      out.lse_by = step_of(out.lse);
    }
    if (!knows_delta()) return out;
    read(call_.o, at, p_.dv, o_);
    for (std::size_t j = 0; j < o_.size(); ++j) out.delta += delta_degree_ * grad_o_[j] * o_[j];
    out.delta_by = delta_degree_ * norm(grad_o_) * norm(o_) * 0x1p-20;
    return out;
  }

  /// Visits all keys of the row, and stores their pairs in `pairs_`.
  QueryRow walked(const RowAt& at) {
    QueryRow out = query_row(at);
    const std::int64_t keys = sequence(p_, at.b).kv_len;
    if (!knows_lse()) {
      out.lse = oracle_.row(at.b, at.h, at.i).lse;
      double squares = 0;
      for (std::int64_t kv = 0; kv < keys; ++kv)
        if (const auto found = pair(kv, out)) squares += squared(found->by);
      out.lse_by = std::sqrt(squares) + unit_of_exp(type_) + step_of(out.lse);
    }
    pairs_.clear();
    for (std::int64_t kv = 0; kv < keys; ++kv)
      if (const auto found = pair(kv, out)) pairs_.push_back(*found);
    if (knows_delta()) return out;
    double squares = 0;
    for (const Pair& one : pairs_) {
      out.delta += one.p * one.dp;
      squares += squared(one.by * one.dp) + squared(one.p * one.dp_by) + squared(unit(type_) * one.p * one.dp);
    }
    out.delta_by = std::sqrt(squares) + (out.lse_by + unit_of_exp(type_)) * std::abs(out.delta);
    return out;
  }

  // ---- Pairs.

  /// None if no rounding can lead to a probability above 0.
  std::optional<Pair> pair(std::int64_t kv, const QueryRow& row) {
    const auto q = oracle_.q(), k = oracle_.k(kv);
    double s = 0;
    for (std::size_t j = 0; j < q.size(); ++j) s += q[j] * k[j];
    s *= p_.scale;
    const Product in_f32 = product(q, k, p_.scale);
    const std::array others{in_f32.s - in_f32.reach, in_f32.s + in_f32.reach};
    const double score = oracle_.score(kv, s), plain_score = oracle_.score(kv, in_f32.s, Precision::f32);
    Pair out{.kv = kv, .p = score == -infinity ? 0 : std::exp(score - row.lse)};
    double moved = 0;
    for (const double to : {oracle_.score(kv, others[0]), oracle_.score(kv, others[1]), plain_score})
      moved = std::max(moved, std::abs((to == -infinity ? 0 : std::exp(to - row.lse)) - out.p));
    if (out.p == 0 && moved == 0) return std::nullopt;
    const double of_score = std::isfinite(score) ? std::abs(score) * unit_of_functions_ : 0;
    out.by = std::hypot(moved + out.p * (of_score + unit_of_exp(type_)), out.p * row.lse_by);
    out.plain_p = std::exp(static_cast<float>(plain_score) - static_cast<float>(row.lse));
    prob_of(out);
    out.slope = oracle_.dscore(kv, s) * p_.scale;
    out.plain_slope = static_cast<float>(oracle_.dscore(kv, in_f32.s, Precision::f32));
    out.slope_by = std::abs(static_cast<double>(out.plain_slope) * p_.scale - out.slope);
    for (const double other : others)
      out.slope_by = std::max(out.slope_by, std::abs(oracle_.dscore(kv, other) * p_.scale - out.slope));
    out.slope_by += unit_of_functions_ * std::abs(p_.scale);
    return out;
  }

  void prob_of(Pair& one) {
    const auto v = oracle_.v(one.kv);
    double dp = 0;
    float plain_dp = 0;
    for (std::size_t j = 0; j < v.size(); ++j) {
      dp += grad_o_[j] * v[j];
      plain_dp += static_cast<float>(grad_o_[j]) * static_cast<float>(v[j]);
    }
    const auto plain_p = static_cast<double>(one.plain_p);
    one.after = oracle_.prob(one.kv, one.p);
    one.plain_after = static_cast<float>(rounded(oracle_.prob(one.kv, plain_p, Precision::f32), type_));
    const double by = oracle_.dprob(one.kv, one.p);
    one.dp = dp * by;
    one.plain_dp = plain_dp * static_cast<float>(oracle_.dprob(one.kv, plain_p, Precision::f32));
    double most = std::abs(by), by_moved = 0, after_moved = 0;
    for (const double other : {one.p + one.by, std::max(one.p - one.by, 0.0)}) {
      after_moved = std::max(after_moved, std::abs(oracle_.prob(one.kv, other) - one.after));
      const double there = oracle_.dprob(one.kv, other);
      by_moved = std::max(by_moved, std::abs(there - by));
      most = std::max(most, std::abs(there));
    }
    one.after_by = std::hypot(after_moved, unit(type_) * one.after);
    one.dp_by = norm(grad_o_) * norm(v) * 0x1p-20 * most + std::abs(dp) * (by_moved + unit_of_functions_);
  }

  /// The gradient of s: exact, its standard deviation from rounding, and in f32.
  struct Gradient {
    double exact, by;
    float plain;
  };
  Gradient gradient(const Pair& one, const QueryRow& row) const {
    const double x = one.dp - row.delta + row.dlse, exact = one.p * x * one.slope;
    const double steepest = std::abs(one.slope) + one.slope_by;
    const double size = one.p * steepest * (std::abs(one.dp) + std::abs(row.delta) + std::abs(row.dlse));
    // p and the result are rounded to the type of products.
    const double squares = squared(one.by * x * steepest) + squared(one.p * one.dp_by * steepest) +
                           squared(one.p * x * one.slope_by) + 2 * squared(unit(type_) * exact) +
                           squared(0x1p-21 * size);
    const auto plain_x = one.plain_dp - static_cast<float>(row.delta) + static_cast<float>(row.dlse);
    const auto plain_p = static_cast<float>(rounded(static_cast<double>(one.plain_p), type_));
    const double plain = rounded(static_cast<double>(plain_p * plain_x * one.plain_slope), type_);
    return {exact, std::sqrt(squares), static_cast<float>(plain) * static_cast<float>(p_.scale)};
  }

  // ---- Results.

  void compare(const char* name, const Tensor& t, const MatrixLayout& at, std::int64_t i, Sum& sum, double more,
               const std::string& place) const {
    std::vector<double> plain;
    for (const float x : sum.plain) plain.push_back(rounded(static_cast<double>(x), t.dtype));
    for (double& x : sum.luck) x = std::sqrt(x);
    if (const auto found = wrong({.name = name,
                                  .tensor = t,
                                  .at = at,
                                  .i = i,
                                  .wanted = sum.exact,
                                  .plain = plain,
                                  .luck = sum.luck,
                                  .more = more}))
      refuse(of_, place, which_, *found);
  }

  void queries() {
    std::vector<std::int64_t> lengths;
    for (std::int64_t b = 0; b < p_.batch; ++b) lengths.push_back(sequence(p_, b).q_len);
    for (const RowAt& at : sampled(lengths, p_.q_heads, which_)) {
      enter(at);
      const QueryRow row = walked(at);
      Sum sum(p_.d), by_delta(p_.d);
      for (const Pair& one : pairs_) {
        const auto k = oracle_.k(one.kv);
        const Gradient ds = gradient(one, row);
        sum.add(ds.exact, ds.by, ds.plain, k);
        by_delta.add(one.p * one.slope, 0, 0, k);
      }
      // All keys share one lse and one delta.
      const double more = (row.lse_by + unit_of_exp(type_)) * norm(sum.exact) + row.delta_by * norm(by_delta.exact);
      compare("dq", call_.dq, matrix(call_.dq, p_.q.layout, at.b, at.h, sequence(p_, at.b).q_start), at.i, sum, more,
              fmt::format("b={} h={} q={}", at.b, at.h, at.i));
    }
  }

  /// The batch entries that read this batch entry of k and v.
  std::vector<std::int64_t> readers(std::int64_t kv_b) const {
    if (!p_.kv_shared || p_.q.packed()) return {kv_b};
    std::vector<std::int64_t> all;
    for (std::int64_t b = 0; b < p_.batch; ++b) all.push_back(b);
    return all;
  }

  /// True if visiting all keys of each query that reads this row of keys is cheap enough. Used if the call lacks o and
  /// lse.
  bool is_walked(std::int64_t kv_b) const {
    double pairs = 0;
    for (const std::int64_t b : readers(kv_b)) {
      const Sequence seq = sequence(p_, b);
      pairs += static_cast<double>(p_.group * seq.q_len) * static_cast<double>(seq.kv_len);
    }
    return pairs <= most_pairs;
  }

  QueryRow row_of_keys(const RowAt& at, bool walk) {
    if (!walk) return query_row(at);
    const auto [found, is_new] = walked_.try_emplace({at.b, at.h, at.i});
    if (is_new) found->second = walked(at);
    return found->second;
  }

  void keys() {
    std::vector<std::int64_t> lengths;
    const std::int64_t entries = p_.kv_shared && !p_.q.packed() ? 1 : p_.batch;
    for (std::int64_t b = 0; b < entries; ++b) lengths.push_back(sequence(p_, b).kv_len);
    bool left_out = false;
    for (const RowAt& at : sampled(lengths, p_.kv_heads, which_)) {
      const bool walk = !knows_delta() && is_walked(at.b);
      const bool dk = call_.dk.given() && (knows_delta() || walk), dv = call_.dv.given() && (knows_lse() || walk);
      left_out = left_out || dk != call_.dk.given() || dv != call_.dv.given();
      if (dk || dv) keys(at, walk, dk, dv);
    }
    if (left_out)
      note(watch::Notice::Of::verify,
           knows_lse() ? "dk is not verified: with this prob mod it takes all pairs of a head"
                       : "dk and dv are not verified: without o and lse they take all pairs of a head");
  }

  void keys(const RowAt& at, bool walk, bool dk, bool dv) {
    Sum k_sum(p_.d), v_sum(p_.dv);
    for (const std::int64_t b : readers(at.b))
      for (std::int64_t h = at.h * p_.group; h < (at.h + 1) * p_.group; ++h)
        for (std::int64_t i = 0; i < sequence(p_, b).q_len; ++i) {
          enter({b, h, i});
          const QueryRow row = row_of_keys({b, h, i}, walk);
          const auto one = pair(at.i, row);
          if (!one) continue;
          v_sum.add(one->after, one->after_by, one->plain_after, grad_o_);
          const Gradient ds = gradient(*one, row);
          k_sum.add(ds.exact, std::hypot(ds.by, one->p * one->slope * row.delta_by), ds.plain, oracle_.q());
        }
    const Sequence seq = sequence(p_, at.b);
    const auto result = [&](const char* name, const Tensor& t, Sum& sum) {
      compare(name, t, matrix(t, p_.kv.layout, seq.kv_b, at.h, seq.kv_start), at.i, sum,
              unit_of_exp(type_) * norm(sum.exact), fmt::format("b={} h={} kv={}", seq.kv_b, at.h, at.i));
    };
    if (dk) result("dk", call_.dk, k_sum);
    if (dv) result("dv", call_.dv, v_sum);
  }

  /// The limit on pairs, which take some tenths of a second.
  static constexpr double most_pairs = 1 << 19;

  const Call& of_;
  const Backward& call_;
  const Problem& p_;
  const Verified& which_;
  double unit_of_functions_;
  Forward forward_;
  OracleRows oracle_;
  double delta_degree_;
  DType type_;
  std::vector<double> grad_o_, o_;
  std::vector<Pair> pairs_;
  std::map<std::array<std::int64_t, 3>, QueryRow> walked_;
};

}  // namespace

void verify_gradients(const Call& call, const Verified& which) { VerifyBackward(call, which)(); }

}  // namespace attune::runtime
