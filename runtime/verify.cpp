// runtime/verify.cpp — ATTUNE_VERIFY: some rows of a result, computed again by the oracle and compared
#include "runtime/verify.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <set>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/cuda/memory.h"
#include "runtime/dump.h"
#include "runtime/layout.h"
#include "runtime/options.h"
#include "runtime/oracle.h"
#include "runtime/tensor.h"

namespace attune::runtime {
namespace {

using compiler::Problem, compiler::Traced;
using ir::Precision;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

struct At {
  std::int64_t b, h, i;
};

/// By head, so that its keys are read once.
std::vector<At> sampled(const Problem& p, int rows, std::uint64_t sample) {
  std::vector<std::int64_t> first{0};  // by batch entry: its first row, all heads counted
  for (std::int64_t b = 0; b < p.batch; ++b) first.push_back(first.back() + sequence(p, b).q_len * p.q_heads);
  const std::int64_t all = first.back();
  std::set<std::int64_t> which;
  for (std::int64_t n = 0; n < std::min<std::int64_t>(rows, all); ++n)
    which.insert(rows >= all ? n
                             : static_cast<std::int64_t>(mixed(mixed(sample) + static_cast<std::uint64_t>(n)) %
                                                         static_cast<std::uint64_t>(all)));
  std::vector<At> out;
  for (const std::int64_t row : which) {
    const auto b = std::upper_bound(first.begin(), first.end(), row) - first.begin() - 1;
    const std::int64_t length = sequence(p, b).q_len, within = row - first[static_cast<std::size_t>(b)];
    out.push_back({b, within / length, within % length});
  }
  return out;
}

/// The same tensor in memory of the host.
Tensor on_host(const Tensor& t, void* stream, std::vector<std::vector<std::byte>>& memory) {
  if (!t.given() || t.device.kind == Device::Kind::cpu || t.size() == 0) return t;
  std::int64_t low = 0, high = 0;  // elements before and behind the first one
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

/// Half a unit in the last place, relative. Of f32 what products of three parts keep, and exp2.
double unit(DType type) { return type == DType::bf16 ? 0x1p-9 : type == DType::f16 ? 0x1p-12 : 0x1p-21; }
/// Of exp2, relative: alike for all pairs, so that it does not average out. Where products are of 16 bits, engines take
/// few of its terms, see codegen/llvm/math.h.
double unit_of_exp(DType type) { return type == DType::f32 || type == DType::f64 ? 0x1p-21 : 0x1p-13; }
/// Below it a type has 0, or less than all of its digits.
double smallest(DType type) { return type == DType::f16 ? 0x1p-24 : 0x1p-120; }
/// What rounds to infinity is no smaller.
double largest(DType type) { return type == DType::f16 ? 65504 : 3e38; }

double rounded(double x, DType type) {
  double room = 0;
  const Tensor t(&room, type, {1});
  store(t, 0, x);
  return load(t, 0);
}

double norm(const std::vector<double>& of) {
  double sum = 0;
  for (const double x : of) sum += x * x;
  return std::sqrt(sum);
}

/// Plain dense attention of one row: at the inputs' type, summed in f32.
struct Dense {
  std::vector<double> o;
  double lse = -infinity;
};

/// What rounding may do to a row: by element, as one standard deviation of independent roundings.
struct Luck {
  std::vector<double> o;
  double lse = 0, max = 0;
};

class Row {
 public:
  Row(OracleRows& oracle, const Traced& traced, const Forward& call, const Problem& p, const At& at)
      : oracle_(oracle), call_(call), p_(p), seq_(sequence(p, at.b)), exact_(oracle.row(at.b, at.h, at.i)),
        has_sink_(traced.mod.sink != nullptr), unit_(unit(call.q.dtype)) {}

  void of_gpu() { on_gpu_ = true; }

  /// Both in one walk over the keys: (n * Skv * D) is what all of this costs.
  void compute() {
    scores();
    dense();
    luck();
  }

  const OracleRow& exact() const { return exact_; }
  const Dense& plain() const { return dense_; }
  const Luck& granted() const { return luck_; }

 private:
  /// s in f32, and how far another order of its sum may be from it.
  void scores() {
    double q_norm = 0;
    for (const double x : oracle_.q()) q_norm += x * x;
    for (std::int64_t kv = 0; kv < seq_.kv_len; ++kv) {
      float sum = 0;
      double k_norm = 0;
      const auto q = oracle_.q(), k = oracle_.k(kv);
      for (std::size_t j = 0; j < q.size(); ++j) {
        sum += static_cast<float>(q[j]) * static_cast<float>(k[j]);
        k_norm += k[j] * k[j];
      }
      const float s = static_cast<float>(p_.scale) * sum;
      Pair pair{.s = static_cast<double>(s), .reach = std::abs(p_.scale) * std::sqrt(q_norm * k_norm) * 0x1p-20};
      pair.score = oracle_.score(kv, pair.s, Precision::f32);
      pairs_.push_back(pair);
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
    for (std::int64_t kv = 0; kv < seq_.kv_len; ++kv) {
      const auto score = static_cast<float>(pairs_[static_cast<std::size_t>(kv)].score);
      if (score == -std::numeric_limits<float>::infinity()) continue;
      const float p = std::exp(score - top) / sum;
      const auto after = static_cast<float>(
          rounded(oracle_.prob(kv, static_cast<double>(p), Precision::f32), call_.q.dtype));
      const auto v = oracle_.v(kv);
      for (std::size_t j = 0; j < o.size(); ++j) o[j] += after * static_cast<float>(v[j]);
    }
    for (std::size_t j = 0; j < o.size(); ++j) dense_.o[j] = rounded(static_cast<double>(o[j]), call_.o.dtype);
    dense_.lse = static_cast<double>(top + std::log(sum));
  }

  /// How far a probability is from another one that rounding may lead to.
  double moved(std::int64_t kv, double p, double score) {
    const Pair& pair = pairs_[static_cast<std::size_t>(kv)];
    double most = 0;
    for (const double other :
         {oracle_.score(kv, pair.s + pair.reach), oracle_.score(kv, pair.s - pair.reach), pair.score}) {
      const double to = other == -infinity ? 0 : std::exp(other - exact_.lse);
      most = std::max(most, std::abs(to - p));
      if (std::isfinite(other) && std::isfinite(score)) luck_.max = std::max(luck_.max, std::abs(other - score));
    }
    // 16-bit kernels of a GPU take its approximate functions, which are right to 11 bits.
    const double of_score = std::isfinite(score) ? std::abs(score) * (on_gpu_ && unit_ > 0x1p-20 ? 0x1p-11 : 0x1p-22)
                                                 : 0;
    luck_.max = std::max(luck_.max, of_score);
    return most + p * (of_score + unit_of_exp(call_.q.dtype));
  }

  void luck() {
    luck_.o.assign(static_cast<std::size_t>(p_.dv), 0);
    double lse = 0;
    auto kept = exact_.kept.begin();
    for (std::int64_t kv = 0; kv < seq_.kv_len; ++kv) {
      const bool is_kept = kept != exact_.kept.end() && kept->kv == kv;
      const double p = is_kept ? kept->p : 0, by = moved(kv, p, is_kept ? kept->score : -infinity);
      if (is_kept) ++kept;
      lse += by * by;
      const double after = is_kept ? oracle_.prob(kv, p) : 0;
      const double change = std::max(std::abs(oracle_.prob(kv, p + by) - after),
                                     std::abs(oracle_.prob(kv, std::max(p - by, 0.0)) - after)) +
                            unit_ * std::abs(after);
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

  OracleRows& oracle_;
  const Forward& call_;
  const Problem& p_;
  Sequence seq_;
  const OracleRow& exact_;
  bool has_sink_, on_gpu_ = false;
  double unit_;
  std::vector<Pair> pairs_;
  Dense dense_;
  Luck luck_;
};

struct Wrong {
  std::string where;
  double got, wanted, distance, allowed;
};

std::string shown(const Problem& p, const Traced& traced, const At& at, const Verified& which, const Wrong& wrong) {
  std::string captures;
  for (std::size_t i = 0; i < traced.captures.size(); ++i) {
    captures += (captures.empty() ? "" : ", ") + traced.mod.captures[i].name + "[";
    for (std::size_t d = 0; d < static_cast<std::size_t>(traced.captures[i].rank); ++d)
      captures += fmt::format("{}{}", d ? ", " : "", traced.captures[i].shape[d]);
    captures += "]";
  }
  return fmt::format(
      "a result differs from the oracle's\n"
      "   at  b={} h={} q={}, {}\n"
      "  got  {:.9g}\n"
      "  not  {:.9g}, which the oracle has; the row is {:.3g} from it, and {:.3g} is allowed\n"
      "   by  {} on {}: B={} H={}/{} S={}x{} D={}/{}{} scale={:.9g} q_offset={}{}{}\n"
      "   of  {}\n"
      "{}  fix  run the same with ATTUNE_DUMP={} and attach its folders {}-*; Target::oracle computes it right "
      "meanwhile",
      at.b, at.h, at.i, wrong.where, wrong.got, wrong.wanted, wrong.distance, wrong.allowed, which.used.kernel,
      which.used.target, p.batch, p.q_heads, p.kv_heads, p.q_len, p.kv_len, p.d, p.dv, p.packed ? " packed" : "",
      p.scale, p.q_offset, captures.empty() ? "" : " ", captures, traced.mod.digest().hex(),
      [&] {
        std::string lines = mod_file(traced.mod), out;
        for (std::size_t begin = 0; begin < lines.size();) {
          const std::size_t end = lines.find('\n', begin);
          out += "       " + lines.substr(begin, end - begin) + "\n";
          begin = end + 1;
        }
        return out;
      }(),
      dumps() ? options().dump : "a folder", traced.mod.digest().hex().substr(0, 16));
}

class Verify {
 public:
  Verify(const Traced& traced, const Forward& call, const Problem& p, const Verified& which, bool on_gpu)
      : traced_(traced), call_(call), p_(p), which_(which), on_gpu_(on_gpu), oracle_(traced, call, p) {}

  void operator()() {
    for (const At& at : sampled(p_, which_.rows, which_.sample)) {
      Row row(oracle_, traced_, call_, p_, at);
      if (on_gpu_) row.of_gpu();
      row.compute();
      o(row, at);
      line("lse", call_.lse, row.exact().lse, row.plain().lse, row.granted().lse, at);
      line("max", call_.max, row.exact().max, row.exact().max, row.granted().max, at);
    }
  }

 private:
  [[noreturn]] void refuse(const At& at, const Wrong& wrong) const { throw Bug(shown(p_, traced_, at, which_, wrong)); }

  double load_at(const Tensor& t, const Strided& of, std::int64_t i, std::int64_t j = 0) const {
    return load(t, of.origin + i * of.row + j * of.column);
  }

  void o(const Row& row, const At& at) const {
    const Sequence seq = sequence(p_, at.b);
    const Strided place = matrix(call_.o, p_.packed, at.b, at.h, seq.q_start);
    const std::vector<double>& wanted = oracle_.o();
    std::vector<double> off, plain_off;
    double worst = -1;
    std::size_t where = 0;
    for (std::size_t j = 0; j < wanted.size(); ++j) {
      const double got = load_at(call_.o, place, at.i, static_cast<std::int64_t>(j)), plain = row.plain().o[j];
      // Where f32 itself has no number, or this type, nothing is known.
      if (!std::isfinite(wanted[j]) || !std::isfinite(plain) || std::abs(wanted[j]) >= largest(call_.o.dtype)) continue;
      if (!std::isfinite(got)) refuse(at, {fmt::format("o[{}]", j), got, wanted[j], infinity, 0});
      off.push_back(got - wanted[j]);
      plain_off.push_back(plain - wanted[j]);
      if (std::abs(off.back()) > worst) worst = std::abs(off.back()), where = j;
    }
    const double type = 2 * unit(call_.o.dtype) * norm(wanted) +
                        smallest(call_.o.dtype) * std::sqrt(static_cast<double>(wanted.size()));
    const double allowed = 1.5 * norm(plain_off) + lucky * norm(row.granted().o) + type;
    // Not `>`: where luck is not finite, the row says nothing.
    if (off.empty() || !std::isfinite(allowed) || norm(off) <= allowed) return;
    refuse(at, {fmt::format("o[{}]", where), load_at(call_.o, place, at.i, static_cast<std::int64_t>(where)),
                wanted[where], norm(off), allowed});
  }

  void line(const char* name, const Tensor& t, double wanted, double plain, double luck, const At& at) const {
    if (!t.given()) return;
    const Sequence seq = sequence(p_, at.b);
    const double got = load_at(t, column(t, p_.packed, at.b, at.h, seq.q_start), at.i);
    if (got == wanted || std::isnan(wanted) || !std::isfinite(luck)) return;
    // A row that one more rounding may empty or fill.
    if (!std::isfinite(wanted) && luck > 0) return;
    const double allowed = std::isfinite(wanted)
                               ? 1.5 * std::abs(plain - wanted) + lucky * luck + unit_of_exp(call_.q.dtype) +
                                     0x1p-20 * std::max(1.0, std::abs(wanted))
                               : 0;
    if (std::isfinite(wanted) && (!std::isfinite(allowed) || std::abs(got - wanted) <= allowed)) return;
    refuse(at, {name, got, wanted, std::abs(got - wanted), allowed});
  }

  /// Standard deviations that are put down to luck: with one row instead of all of them there is some.
  static constexpr double lucky = 4;

  const Traced& traced_;
  const Forward& call_;
  const Problem& p_;
  const Verified& which_;
  bool on_gpu_;
  OracleRows oracle_;
};

}  // namespace

std::uint64_t next_sample() {
  static std::atomic<std::uint64_t> calls{0};
  return calls.fetch_add(1, std::memory_order_relaxed);
}

void verify(const Traced& traced, const Forward& call, const Problem& problem, const Verified& which) {
  const bool on_gpu = call.q.device.kind == Device::Kind::cuda;
  if (!on_gpu) return Verify(traced, call, problem, which, false)();
  if (cuda::is_captured(which.stream))
    return note(watch::Noted::Of::verify, "a call that is captured into a graph is not verified");
  std::vector<std::vector<std::byte>> memory;
  Traced there = traced;
  for (Tensor& t : there.captures) t = on_host(t, which.stream, memory);
  Forward here = call;
  for (Tensor* t : {&here.q, &here.k, &here.v, &here.o, &here.lse, &here.max}) *t = on_host(*t, which.stream, memory);
  Verify(there, here, problem, which, true)();
}

}  // namespace attune::runtime
