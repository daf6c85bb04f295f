// runtime/engines/oracle/verify.cpp — ATTUNE_VERIFY: computes some rows of a result again with the oracle and compares
// them
#include "runtime/engines/oracle/verify.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "codegen/choose.h"
#include "compiler/bind.h"
#include "runtime/engines/cuda/memory.h"
#include "runtime/engines/infinity.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/oracle/verify_rows.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

using compiler::Problem, compiler::BoundMod;
using ir::Precision;

/// Plain dense attention of one row: with the inputs' type, summed in f32.
struct Dense {
  std::vector<double> o;
  double lse = -infinity;
};

/// How far rounding may move a row: per element, one standard deviation of independent roundings.
struct Luck {
  std::vector<double> o;
  double lse = 0, max = 0;
};

class Row {
 public:
  /// `products`: the type of their operands.
  Row(OracleRows& oracle, const BoundMod& bound, const Forward& call, const Problem& p, const RowAt& at, DType products)
      : oracle_(oracle), call_(call), p_(p), seq_(sequence(p, at.b)), exact_(oracle.row(at.b, at.h, at.i)),
        has_sink_(bound.mod.sink != nullptr), products_(products), unit_(unit(products)) {}

  /// Call for rows from a GPU kernel that is not exact.
  void of_fast_kernel() {
    fast_ = true;
    if (size_of(products_) >= 4) tf32_ = true, unit_ = 0x1p-11;
  }

  /// All of this costs (n * Skv * D).
  void compute() {
    scores();
    dense();
    luck();
  }

  const OracleRow& exact() const { return exact_; }
  const Dense& plain() const { return dense_; }
  const Luck& granted() const { return luck_; }

 private:
  /// s in f32, and how far another order of its sum may move it.
  void scores() {
    const std::vector<double> q = operands(oracle_.q());
    for (std::int64_t kv = 0; kv < seq_.kv_len; ++kv) {
      Product s = product(q, operands(oracle_.k(kv)), p_.scale);
      // Products of 8 bits are summed up in some 14 bits.
      if (products_ == DType::e4m3) s.reach *= 0x1p7;
      pairs_.push_back({s.s, s.reach, oracle_.score(kv, s.s, Precision::f32)});
    }
  }

  void dense() {
    auto top = static_cast<float>(exact_.sink);
    for (const Pair& pair : pairs_) top = std::max(top, static_cast<float>(pair.score));
    std::vector<float> o(static_cast<std::size_t>(p_.dv));
    dense_.o.assign(o.size(), 0);
    if (top == -std::numeric_limits<float>::infinity()) return;
    float sum = has_sink_ ? std::exp(static_cast<float>(exact_.sink) - top) : 0;
    for (const Pair& pair : pairs_) sum += std::exp(static_cast<float>(pair.score) - top);
    std::vector<double> after_all(pairs_.size());
    for (std::int64_t kv = 0; kv < seq_.kv_len; ++kv) {
      const auto score = static_cast<float>(pairs_[static_cast<std::size_t>(kv)].score);
      if (score == -std::numeric_limits<float>::infinity()) continue;
      const double after = oracle_.prob(kv, static_cast<double>(std::exp(score - top) / sum), Precision::f32);
      after_all[static_cast<std::size_t>(kv)] = after;
      most_ = std::max(most_, std::abs(after));
    }
    const double factor = to_range();
    for (std::int64_t kv = 0; kv < seq_.kv_len; ++kv) {
      const double unrounded = after_all[static_cast<std::size_t>(kv)];
      if (static_cast<float>(pairs_[static_cast<std::size_t>(kv)].score) == -std::numeric_limits<float>::infinity())
        continue;
      const auto after = static_cast<float>(operand(rounded(unrounded * factor, products_) / factor));
      const std::vector<double> v = operands(oracle_.v(kv));
      for (std::size_t j = 0; j < o.size(); ++j) o[j] += after * static_cast<float>(v[j]);
    }
    for (std::size_t j = 0; j < o.size(); ++j) dense_.o[j] = rounded(static_cast<double>(o[j]), call_.o.dtype);
    dense_.lse = static_cast<double>(top + std::log(sum));
  }

  /// What takes probabilities to the range of e4m3 for its products: the largest of a row becomes 2^7 to 2^8.
  double to_range() const {
    return products_ == DType::e4m3 && most_ > 0 && std::isfinite(most_) ? std::ldexp(1.0, 7 - std::ilogb(most_)) : 1;
  }

  /// How far rounding may move a probability.
  double moved(std::int64_t kv, double p, double score) {
    const Pair& pair = pairs_[static_cast<std::size_t>(kv)];
    double most = 0;
    for (const double other :
         {oracle_.score(kv, pair.s + pair.reach), oracle_.score(kv, pair.s - pair.reach), pair.score}) {
      const double to = other == -infinity ? 0 : std::exp(other - exact_.lse);
      most = std::max(most, std::abs(to - p));
      if (std::isfinite(other) && std::isfinite(score)) luck_.max = std::max(luck_.max, std::abs(other - score));
    }
    // A GPU's own functions are accurate to 11 bits.
    const double of_score = std::isfinite(score) ? std::abs(score) * (fast_ ? 0x1p-11 : 0x1p-22) : 0;
    luck_.max = std::max(luck_.max, of_score);
    return most + p * (of_score + unit_of_exp(products_));
  }

  void luck() {
    luck_.o.assign(static_cast<std::size_t>(p_.dv), 0);
    double lse = 0;
    // A thread's powers of a tile may sum up to 2^8, and what is rounded to nothing is below 2^-10.
    const double least = products_ == DType::e4m3 ? 0x1p-18 * std::max(most_, 1.0) : 0;
    auto kept = exact_.kept.begin();
    for (std::int64_t kv = 0; kv < seq_.kv_len; ++kv) {
      const bool is_kept = kept != exact_.kept.end() && kept->kv == kv;
      const double p = is_kept ? kept->p : 0, by = moved(kv, p, is_kept ? kept->score : -infinity);
      if (is_kept) ++kept;
      lse += by * by;
      const double after = is_kept ? oracle_.prob(kv, p) : 0;
      const double change = std::max(std::abs(oracle_.prob(kv, p + by) - after),
                                     std::abs(oracle_.prob(kv, std::max(p - by, 0.0)) - after)) +
                            std::max(unit_ * std::abs(after), least);
      if (by == 0 && after == 0) continue;
      const auto v = oracle_.v(kv);
      for (std::size_t j = 0; j < luck_.o.size(); ++j) luck_.o[j] += change * v[j] * (change * v[j]);
    }
    for (double& x : luck_.o) x = std::sqrt(x);
    luck_.lse = std::sqrt(lse);
  }

  struct Pair {
    double s, reach, score = 0;
  };

  /// Rounded as products take it.
  double operand(double x) const { return tf32_ ? tf32(x) : x; }
  std::vector<double> operands(std::span<const double> of) const {
    std::vector<double> out(of.begin(), of.end());
    for (double& x : out) x = operand(x);
    return out;
  }

  OracleRows& oracle_;
  const Forward& call_;
  const Problem& p_;
  Sequence seq_;
  const OracleRow& exact_;
  bool has_sink_, fast_ = false, tf32_ = false;
  DType products_;
  double unit_, most_ = 0;  ///< most_: the largest probability, after a prob mod
  std::vector<Pair> pairs_;
  Dense dense_;
  Luck luck_;
};

class Verify {
 public:
  Verify(const BoundMod& bound, const Forward& call, const Problem& p, const Verified& which, DType products, bool fast)
      : bound_(bound), call_(call), p_(p), which_(which), products_(products), fast_(fast), oracle_(bound, call, p) {}

  void operator()() {
    std::vector<std::int64_t> lengths;
    for (std::int64_t b = 0; b < p_.batch; ++b) lengths.push_back(sequence(p_, b).q_len);
    for (const RowAt& at : sampled(lengths, p_.q_heads, which_)) {
      Row row(oracle_, bound_, call_, p_, at, products_);
      if (fast_) row.of_fast_kernel();
      row.compute();
      o(row, at);
      line("lse", call_.lse, row.exact().lse, row.plain().lse, row.granted().lse, at);
      line("max", call_.max, row.exact().max, row.exact().max, row.granted().max, at);
    }
  }

 private:
  [[noreturn]] void differs(const RowAt& at, const Wrong& wrong) const {
    refuse(p_, bound_.mod, args_of(bound_, call_).captures, fmt::format("b={} h={} q={}", at.b, at.h, at.i), which_,
           wrong);
  }

  void o(const Row& row, const RowAt& at) const {
    if (const auto found = wrong({.name = "o",
                                  .tensor = call_.o,
                                  .at = matrix(call_.o, p_.q.layout, at.b, at.h, sequence(p_, at.b).q_start),
                                  .i = at.i,
                                  .wanted = oracle_.o(),
                                  .plain = row.plain().o,
                                  .luck = row.granted().o}))
      differs(at, *found);
  }

  void line(const char* name, const Tensor& t, double wanted, double plain, double luck, const RowAt& at) const {
    if (!t.given()) return;
    const MatrixLayout place = column(t, p_.q.layout, at.b, at.h, sequence(p_, at.b).q_start);
    const double got = load(t, place.origin + at.i * place.row);
    if (got == wanted || std::isnan(wanted) || !std::isfinite(luck)) return;
    // One more rounding may empty or fill such a row.
    if (!std::isfinite(wanted) && luck > 0) return;
    const double allowed = std::isfinite(wanted)
                               ? 1.5 * std::abs(plain - wanted) + lucky * luck + unit_of_exp(products_) +
                                     0x1p-20 * std::max(1.0, std::abs(wanted))
                               : 0;
    if (std::isfinite(wanted) && (!std::isfinite(allowed) || std::abs(got - wanted) <= allowed)) return;
    differs(at, {name, got, wanted, std::abs(got - wanted), allowed});
  }

  const BoundMod& bound_;
  const Forward& call_;
  const Problem& p_;
  const Verified& which_;
  DType products_;
  bool fast_;
  OracleRows oracle_;
};

}  // namespace

std::uint64_t next_sample() {
  static std::atomic<std::uint64_t> calls{0};
  return calls.fetch_add(1, std::memory_order_relaxed);
}

Tensor on_host(const Tensor& t, void* stream, std::vector<std::vector<std::byte>>& memory) {
  if (!t.given() || t.device.kind == Device::Kind::cpu || t.size() == 0) return t;
  std::int64_t low = 0, high = 0;  // elements before and after the first one
  for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
    const std::int64_t reach = (t.shape[d] - 1) * t.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const std::size_t size = size_of(t.dtype), bytes = static_cast<std::size_t>(high - low + 1) * size;
  memory.emplace_back(bytes);
  const auto all = static_cast<std::int64_t>(bytes);
  std::byte* first = static_cast<std::byte*>(t.data) + low * static_cast<std::int64_t>(size);
  cuda::copy(Tensor(first, DType::u8, {all}, {}, t.device), Tensor(memory.back().data(), DType::u8, {all}), bytes,
             stream);
  Tensor out = t;
  out.device = Device::cpu();
  out.data = memory.back().data() - low * static_cast<std::int64_t>(size);
  return out;
}

void verify(const BoundMod& bound, const Forward& call, const Problem& problem, const Verified& which) {
  const bool on_gpu = call.q.device.kind == Device::Kind::cuda;
  // The host widens e4m3.
  if (!on_gpu)
    return Verify(bound, call, problem, which, call.q.dtype == DType::e4m3 ? DType::f32 : call.q.dtype, false)();
  if (cuda::is_captured(which.stream))
    return note(watch::Noted::Of::verify, "a call that is captured into a graph is not verified");
  std::vector<std::vector<std::byte>> memory;
  std::vector<Tensor> captures;
  for (const Tensor& t : args_of(bound, call).captures) captures.push_back(on_host(t, which.stream, memory));
  Forward here = call;
  here.captures = captures;
  for (Tensor* t : {&here.q, &here.k, &here.v, &here.o, &here.lse, &here.max}) *t = on_host(*t, which.stream, memory);
  Problem known = problem;
  if (problem.q.starts_on_device() || call.kv_len.given() || call.q_offsets.given() || call.pages.given()) {
    for (Tensor* t : {&here.cu_seqlens_q, &here.cu_seqlens_kv, &here.kv_len, &here.q_offsets, &here.pages})
      *t = on_host(*t, which.stream, memory);
    known = compiler::check(bound, here, problem.scale);
  }
  Verify(bound, here, known, which, call.q.dtype, !codegen::is_exact(which.exact, call.q.dtype))();
}

}  // namespace attune::runtime
