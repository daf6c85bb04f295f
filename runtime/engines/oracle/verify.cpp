// runtime/engines/oracle/verify.cpp — checks of a call by the oracle: ATTUNE_VERIFY, some rows computed again;
// ATTUNE_CHECK=range, reads outside of captured tensors
#include "runtime/engines/oracle/verify.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/check.h"
#include "ir/print.h"
#include "runtime/engines/layout.h"
#include "runtime/engines/merge.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/oracle/verify_rows.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

using compiler::Problem;
using ir::Precision;

/// Plain dense attention of one row: with the inputs' type, summed in f32.
struct Dense {
  std::vector<double> o;
  double lse = -infinity;
};

/// The error that rounding may cause in a row: per element, one standard deviation of independent roundings.
struct Luck {
  std::vector<double> o;
  double lse = 0, max = 0;
};

class Row {
 public:
  /// `products`: the type of their operands.
  Row(OracleRows& oracle, const Call& call, const RowAt& at, DType products)
      : oracle_(oracle), call_(call.forward()), p_(call.problem), seq_(sequence(p_, at.b)),
        exact_(oracle.row(at.b, at.h, at.i)), has_sink_(call.mod.mod.sink != nullptr), products_(products),
        unit_(unit(products)) {}

  /// Call for rows from a GPU kernel that is not exact.
  void of_fast_kernel() {
    fast_ = true;
    if (size_of(products_) >= 4) tf32_ = true, unit_ = 0x1p-11;
  }

  /// The computation costs O(n * Skv * D).
  void compute() {
    scores();
    dense();
    luck();
  }

  const OracleRow& exact() const { return exact_; }
  const Dense& plain() const { return dense_; }
  const Luck& granted() const { return luck_; }

 private:
  /// s in f32, and the error that another order of its sum may cause.
  void scores() {
    const std::vector<double> q = operands(oracle_.q());
    for (std::int64_t kv = 0; kv < seq_.kv_len; ++kv) {
      Product s = product(q, operands(oracle_.k(kv)), p_.scale);
      // FP8 products are accumulated with about 14 bits.
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

  /// The factor that scales probabilities to the range of e4m3 for products: the largest of a row becomes 2^7 to 2^8.
  double to_range() const {
    return products_ == DType::e4m3 && most_ > 0 && std::isfinite(most_) ? std::ldexp(1.0, 7 - std::ilogb(most_)) : 1;
  }

  /// The error that rounding may cause in a probability.
  double moved(std::int64_t kv, double p, double score) {
    const Pair& pair = pairs_[static_cast<std::size_t>(kv)];
    double most = 0;
    for (const double other :
         {oracle_.score(kv, pair.s + pair.reach), oracle_.score(kv, pair.s - pair.reach), pair.score}) {
      const double to = other == -infinity ? 0 : std::exp(other - exact_.lse);
      most = std::max(most, std::abs(to - p));
      if (std::isfinite(other) && std::isfinite(score)) luck_.max = std::max(luck_.max, std::abs(other - score));
    }
    // A GPU's hardware functions are accurate to 11 bits.
    const double of_score = std::isfinite(score) ? std::abs(score) * (fast_ ? 0x1p-11 : 0x1p-22) : 0;
    luck_.max = std::max(luck_.max, of_score);
    return most + p * (of_score + unit_of_exp(products_));
  }

  void luck() {
    luck_.o.assign(static_cast<std::size_t>(p_.dv), 0);
    double lse = 0;
    // A thread's powers of a tile may sum up to 2^8, and numbers that round to 0 are below 2^-10.
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

  /// x, rounded to the type of the operands of products.
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
  // The host widens e4m3.
  Verify(const Call& of, const Verified& which)
      : of_(of), call_(of.forward()), p_(of.problem), which_(which),
        products_(call_.q.dtype == DType::e4m3 && !which.by_device ? DType::f32 : call_.q.dtype),
        fast_(is_fast(of, which)), oracle_(of) {}

  void operator()() {
    std::vector<std::int64_t> lengths;
    for (std::int64_t b = 0; b < p_.batch; ++b) lengths.push_back(sequence(p_, b).q_len);
    for (const RowAt& at : sampled(lengths, p_.q_heads, which_)) {
      Row row(oracle_, of_, at, products_);
      if (fast_) row.of_fast_kernel();
      row.compute();
      o(row, at);
      line("lse", call_.lse, row.exact().lse, row.plain().lse, row.granted().lse, at);
      line("max", call_.max, row.exact().max, row.exact().max, row.granted().max, at);
    }
  }

 private:
  [[noreturn]] void differs(const RowAt& at, const Wrong& wrong) const {
    refuse(of_, fmt::format("b={} h={} q={}", at.b, at.h, at.i), which_, wrong);
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
    // One more rounding may remove all pairs of such a row, or keep some.
    if (!std::isfinite(wanted) && luck > 0) return;
    const double allowed = std::isfinite(wanted)
                               ? 1.5 * std::abs(plain - wanted) + lucky * luck + unit_of_exp(products_) +
                                     0x1p-20 * std::max(1.0, std::abs(wanted))
                               : 0;
    if (std::isfinite(wanted) && (!std::isfinite(allowed) || std::abs(got - wanted) <= allowed)) return;
    differs(at, {name, got, wanted, std::abs(got - wanted), allowed});
  }

  const Call& of_;
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

void verify(const Call& call, const Verified& which) {
  if (call.is_forward()) return Verify(call, which)();
  verify_gradients(call, which);
  verify_captured(call, which);
}

namespace {

using compiler::OutsideIndex;

/// One index of a read, ready to evaluate.
struct CountedIndex {
  OutsideIndex of;
  ir::Program count;
  std::optional<ir::Program> index;  ///< none if the index depends on the variable of a sum
};

class Count {
 public:
  Count(const compiler::Mod& written, const Call& call)
      : mod_(written), problem_(call.problem), captures_(call.args.captures), rows_(call) {
    const auto clamped = compiler::check_reads(written, captures_, problem_);
    for (const OutsideIndex& one : compiler::outside_indices(written, clamped, captures_)) {
      const ir::Expr& index = one.read->args[one.dimension];
      counted_.push_back({one, ir::Program(one.count), index->free ? std::nullopt : std::optional<ir::Program>(index)});
    }
  }

  OutsideReads operator()() {
    using enum OutsideIndex::At;
    if (counted_.empty()) return {};
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      const Sequence seq = sequence(problem_, b);
      for (std::int64_t h = 0; h < problem_.q_heads && seq.q_len > 0; ++h)
        for (std::int64_t i = 0; i < seq.q_len; ++i) {
          const OracleRow& row = rows_.row(b, h, i);
          const std::string place = fmt::format("b={} h={}", b, h);
          if (i == 0) at(head, {0, 0, 0, 0}, place);
          const std::string of_row = fmt::format("{} q={}", place, seq.q_offset + i);
          for (std::int64_t kv = 0; kv < seq.kv_len; ++kv) at(pair, {kv, 0, 0, 0}, of_row);
          for (const OracleRow::Pair& kept : row.kept) at(kept_pair, kept, of_row);
        }
    }
    return out_;
  }

 private:
  void at(OutsideIndex::At where, const OracleRow::Pair& pair, const std::string& place) {
    for (const CountedIndex& one : counted_) {
      if (one.of.at != where) continue;
      const auto count = static_cast<std::int64_t>(rows_.value(one.count, pair));
      if (count > 0 && out_.count == 0) first(one, pair, place);
      out_.count += count;
    }
  }

  void first(const CountedIndex& one, const OracleRow::Pair& pair, const std::string& place) {
    const ir::Expr& read = one.of.read;
    const Tensor& tensor = captures_[read->bits];
    const ir::Signature names = mod_.signature();
    out_.name = mod_.captures[read->bits].name;
    const std::string is = one.index ? fmt::format(" is {}", rows_.value(*one.index, pair)) : " is outside";
    const std::string of_pair = one.of.at == OutsideIndex::At::head
                                    ? ""
                                    : fmt::format(" kv={}", problem_.kv_offset + pair.kv);
    const std::int64_t extent = tensor.shape[one.of.dimension];
    out_.first = fmt::format("at {}{}, {}{} in {}, and {} holds {} value{}{}", place, of_pair,
                             ir::print(read->args[one.of.dimension], names), is, ir::print(read, names), out_.name,
                             extent, extent == 1 ? "" : "s",
                             tensor.rank > 1 ? fmt::format(" along dimension {}", one.of.dimension) : "");
  }

  const compiler::Mod& mod_;
  const compiler::Problem& problem_;
  std::span<const Tensor> captures_;
  OracleRows rows_;
  std::vector<CountedIndex> counted_;
  OutsideReads out_;
};

}  // namespace

OutsideReads outside_reads(const compiler::Mod& written, const Call& call) { return Count(written, call)(); }

void refuse_outside_reads(const compiler::Mod& written, const Call& call) {
  const OutsideReads found = outside_reads(written, call);
  if (found.count == 0) return;
  throw Error("capture-outside", fmt::format("capture `{}` is read out of range", found.name), {},
              fmt::format("{}; {} read{} of this call {} outside", found.first, found.count,
                          found.count == 1 ? "" : "s", found.count == 1 ? "is" : "are"),
              "fix the data or the index, or write clamp(…) to stay at the ends");
}

}  // namespace attune::runtime
