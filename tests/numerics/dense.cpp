// tests/numerics/dense.cpp — plain dense attention at the inputs' type with f32 sums: the yardstick of engines' errors
#include "tests/numerics/dense.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <optional>

#include "codegen/facts/parts.h"
#include "compiler/bind.h"
#include "runtime/engines/call.h"
#include "runtime/engines/layout.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/machine/tensor.h"

namespace attune::tests {
namespace {

using compiler::Problem, compiler::BoundMod;
using runtime::Sequence, runtime::MatrixLayout;

constexpr float infinity = std::numeric_limits<float>::infinity();

float rounded(float x, DType type) {
  if (type == DType::bf16) return bf16(x);
  if (type == DType::f16) return f16(x);
  if (type == DType::e4m3) return e4m3(x);
  return x;
}

/// Row-major.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> values{};

  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  float& operator()(std::int64_t i, std::int64_t j) { return values[static_cast<std::size_t>(i * columns + j)]; }
  float operator()(std::int64_t i, std::int64_t j) const { return values[static_cast<std::size_t>(i * columns + j)]; }
};

Matrix read(const Tensor& t, const MatrixLayout& at, std::int64_t rows, std::int64_t columns) {
  Matrix m(rows, columns);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      m(i, j) = static_cast<float>(runtime::load(t, at.origin + i * at.row + j * at.column));
  return m;
}
/// Keys or values, dense, packed or paged.
Matrix read(const Tensor& t, const runtime::KeyRows& keys, std::int64_t rows, std::int64_t columns) {
  Matrix m(rows, columns);
  for (std::int64_t i = 0; i < rows; ++i)
    if (const auto one = keys.range(t, i, i + 1); one.there)
      for (std::int64_t j = 0; j < columns; ++j)
        m(i, j) = static_cast<float>(runtime::load(t, one.at.origin + j * one.at.column));
  return m;
}
void write(const Tensor& t, const MatrixLayout& at, const Matrix& m) {
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (std::int64_t j = 0; j < m.columns; ++j)
      runtime::store(t, at.origin + i * at.row + j * at.column, static_cast<double>(m(i, j)));
}
void write(const Tensor& t, const MatrixLayout& at, const std::vector<float>& line) {
  for (std::size_t i = 0; i < line.size(); ++i)
    runtime::store(t, at.origin + static_cast<std::int64_t>(i) * at.row, static_cast<double>(line[i]));
}

/// Adds a multiple of a row of another matrix to a row of `into`.
void add_row(Matrix& into, std::int64_t i, float factor, const Matrix& from, std::int64_t j) {
  float* __restrict const to = &into.values[static_cast<std::size_t>(i * into.columns)];
  const float* __restrict const x = &from.values[static_cast<std::size_t>(j * from.columns)];
  constexpr std::int64_t at_once = 8;  // a constant, so that the compiler vectorizes the inner loop
  std::int64_t c = 0;
  for (; c + at_once <= from.columns; c += at_once)
    for (std::int64_t n = 0; n < at_once; ++n) to[c + n] += factor * x[c + n];
  for (; c < from.columns; ++c) to[c] += factor * x[c];
}
float dot(const Matrix& a, std::int64_t i, const Matrix& b, std::int64_t j) {
  float sum = 0;
  for (std::int64_t c = 0; c < a.columns; ++c) sum += a(i, c) * b(j, c);
  return sum;
}

/// The same as products of e4m3 sum it up: of 32 terms and the sum before them, each loses the bits behind so many of
/// the largest. An H200's errors were 2.7 times (128 columns) to 5 times (16) those of 14 bits, so that it has 12
/// or 13.
float dot_of_e4m3(const Matrix& a, std::int64_t i, const Matrix& b, std::int64_t j) {
  constexpr std::int64_t at_once = 32;
  constexpr int bits = 12;
  double sum = 0;
  for (std::int64_t from = 0; from < a.columns; from += at_once) {
    const std::int64_t to = std::min(from + at_once, a.columns);
    const auto term = [&](std::int64_t c) { return double{a(i, c)} * double{b(j, c)}; };
    double most = std::abs(sum);
    for (std::int64_t c = from; c < to; ++c) most = std::max(most, std::abs(term(c)));
    if (most == 0) continue;
    if (!std::isfinite(most)) return dot(a, i, b, j);
    const double unit = std::ldexp(1.0, std::ilogb(most) - bits);
    double next = std::trunc(sum / unit);
    for (std::int64_t c = from; c < to; ++c) next += std::trunc(term(c) / unit);
    sum = next * unit;
  }
  return static_cast<float>(sum);
}

/// dot(a, i, b, j) for all i and j, each computed once it is asked for, with the next few j: one sum waits for each of
/// its additions, eight do not wait for each other.
class Products {
 public:
  Products(const Matrix& a, const Matrix& b, bool of_e4m3 = false)
      : a_(a), b_(b), of_e4m3_(of_e4m3), values_(a.rows, b.rows),
        known_(static_cast<std::size_t>(a.rows * (b.rows / at_once + 1))) {}

  float operator()(std::int64_t i, std::int64_t j) {
    char& known = known_[static_cast<std::size_t>(i * (b_.rows / at_once + 1) + j / at_once)];
    if (!known) compute(i, j / at_once * at_once);
    known = 1;
    return values_(i, j);
  }

 private:
  static constexpr std::int64_t at_once = 8;

  void compute(std::int64_t i, std::int64_t from) {
    const std::int64_t count = std::min(at_once, b_.rows - from), columns = a_.columns;
    if (of_e4m3_ || count < at_once || columns == 0) {
      for (std::int64_t j = from; j < from + count; ++j)
        values_(i, j) = of_e4m3_ ? dot_of_e4m3(a_, i, b_, j) : dot(a_, i, b_, j);
      return;
    }
    const float* const x = &a_.values[static_cast<std::size_t>(i * columns)];
    const float* const y = &b_.values[static_cast<std::size_t>(from * columns)];
    std::array<float, at_once> sums{};
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::size_t n = 0; n < sums.size(); ++n) sums[n] += x[c] * y[static_cast<std::int64_t>(n) * columns + c];
    for (std::size_t n = 0; n < sums.size(); ++n) values_(i, from + static_cast<std::int64_t>(n)) = sums[n];
  }

  const Matrix& a_;
  const Matrix& b_;
  bool of_e4m3_;
  Matrix values_;
  std::vector<char> known_;
};

/// The square of each row's norm.
std::vector<double> squares_of_rows(const Matrix& m) {
  std::vector<double> out(static_cast<std::size_t>(m.rows));
  for (std::int64_t i = 0; i < m.rows; ++i) out[static_cast<std::size_t>(i)] = double{dot(m, i, m, i)};
  return out;
}

/// Expressions in f32, as an engine evaluates them.
class Evaluator {
 public:
  explicit Evaluator(const BoundMod& bound)
      : read_(runtime::reader(bound.slots.captures)), params_(compiler::args(bound).params) {
    env.params = params_;
    env.read = &read_;
  }
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  ir::Env env;

  float operator()(const ir::Program& program) {
    program.run(env, memory_, ir::Precision::f32);
    return result(program, 0);
  }
  float result(const ir::Program& program, std::size_t root) const {
    return static_cast<float>(program.result(root, memory_));
  }

 private:
  ir::ReadCapture read_;
  std::vector<double> params_;
  ir::Program::Memory memory_;
};

/// One (batch entry, head) after its softmax.
struct Head {
  Sequence seq;
  std::int64_t h;
  Matrix s, p;             ///< before the score mod; after the softmax, 0 where removed
  std::vector<char> kept;  ///< like s
  std::vector<float> max, lse, sink, sink_p;

  Head(const Sequence& at, std::int64_t head)
      : seq(at), h(head), s(at.q_len, at.kv_len), p(at.q_len, at.kv_len),
        kept(static_cast<std::size_t>(at.q_len * at.kv_len)), max(static_cast<std::size_t>(at.q_len), -infinity),
        lse(max), sink(max), sink_p(static_cast<std::size_t>(at.q_len)) {}
  bool keeps(std::int64_t i, std::int64_t j) const { return kept[static_cast<std::size_t>(i * s.columns + j)]; }
};

class Dense {
 public:
  explicit Dense(const BoundMod& bound, const Problem& problem)
      : problem_(problem), at_(bound), mask_(bound.mod.mask), score_(bound.mod.score), prob_(bound.mod.prob),
        prob_is_linear_(codegen::linear_in_p(bound.mod.prob)) {
    if (bound.mod.sink) sink_.emplace(bound.mod.sink);
  }

  /// `q_k`: products of queries and keys.
  Head head(const Sequence& seq, std::int64_t h, Products& q_k) {
    Head head(seq, h);
    for (std::int64_t i = 0; i < seq.q_len; ++i) softmax(head, i, q_k);
    return head;
  }

  /// Evaluates at a kept pair, whose s and p are known.
  void place(const Head& head, std::int64_t i, std::int64_t j) {
    at_.env.b = static_cast<std::int32_t>(head.seq.b);
    at_.env.h = static_cast<std::int32_t>(head.h);
    at_.env.q = static_cast<std::int32_t>(head.seq.q_offset + i);
    at_.env.kv = static_cast<std::int32_t>(head.seq.kv_offset + j);
    at_.env.q_len = static_cast<std::int32_t>(head.seq.q_len);
    at_.env.kv_len = head.seq.kv_end();
    if (j >= head.seq.kv_len) return;
    at_.env.s = static_cast<double>(head.s(i, j));
    at_.env.p = static_cast<double>(head.p(i, j));
  }
  float value(const ir::Program& program) { return at_(program); }
  Evaluator& evaluator() { return at_; }
  float prob() {
    const float x = at_(prob_);
    return is_skipped(x) ? 0 : x;
  }
  /// True if engines may skip the pair in spite of this factor or result of its p: p may count as 0, and prob() is a
  /// multiple of it.
  bool is_skipped(float x) const { return prob_is_linear_ && !std::isfinite(x) && std::abs(at_.env.p) < 0x1p-126; }

  /// Probabilities as a backward computes them: from lse, without the forward's intermediate results.
  void from_lse(Head& head, std::int64_t i, int steps) {
    const auto row = static_cast<std::size_t>(i);
    for (int step = 0; step < std::abs(steps); ++step)
      head.lse[row] = std::nextafter(head.lse[row], steps > 0 ? infinity : -infinity);
    for (std::int64_t j = 0; j < head.seq.kv_len; ++j) {
      if (!head.keeps(i, j)) continue;
      place(head, i, j);
      head.p(i, j) = std::exp(at_(score_) - head.lse[row]);
    }
    if (head.sink[row] != -infinity) head.sink_p[row] = std::exp(head.sink[row] - head.lse[row]);
  }

 private:
  void softmax(Head& head, std::int64_t i, Products& q_k) {
    const auto row = static_cast<std::size_t>(i);
    float top = -infinity;
    for (std::int64_t j = 0; j < head.seq.kv_len; ++j) {
      place(head, i, j);
      if (at_(mask_) == 0) continue;
      head.s(i, j) = static_cast<float>(problem_.scale) * q_k(i, j);
      place(head, i, j);
      const float score = head.p(i, j) = at_(score_);
      if (score == -infinity) continue;
      head.kept[row * static_cast<std::size_t>(head.seq.kv_len) + static_cast<std::size_t>(j)] = 1;
      if (score > top || std::isnan(score)) top = score;
    }
    head.max[row] = top;
    if (sink_) {
      place(head, i, head.seq.kv_len);
      const float sink = head.sink[row] = at_(*sink_);
      if (sink > top || std::isnan(sink)) top = sink;
    }
    if (top == -infinity) {
      for (std::int64_t j = 0; j < head.seq.kv_len; ++j) head.p(i, j) = 0;
      return;
    }
    float sum = head.sink_p[row] = std::exp(head.sink[row] - top);
    for (std::int64_t j = 0; j < head.seq.kv_len; ++j) {
      head.p(i, j) = head.keeps(i, j) ? std::exp(head.p(i, j) - top) : 0;
      sum += head.p(i, j);
    }
    for (std::int64_t j = 0; j < head.seq.kv_len; ++j) head.p(i, j) /= sum;
    head.sink_p[row] /= sum;
    head.lse[row] = top + std::log(sum);
  }

  const Problem& problem_;
  Evaluator at_;
  ir::Program mask_, score_, prob_;
  bool prob_is_linear_;
  std::optional<ir::Program> sink_;
};

/// Half a unit in the last place of a 16-bit type, for numbers from 1 on; 0 for other types.
double half_unit(DType type) { return type == DType::bf16 ? 0x1p-9 : type == DType::f16 ? 0x1p-12 : 0; }

/// True for a probability that 2^-126 less would change by more than a rounding of f32.
bool may_be_flushed(float p) { return std::abs(p) < 0x1p-102f; }

/// A product of a gradient. Engines may take 0 times infinity or NaN as 0 (docs/semantics.md, "Where engines may
/// differ").
float product(float a, float b) { return (a == 0 && !std::isfinite(b)) || (b == 0 && !std::isfinite(a)) ? 0 : a * b; }
/// The same with a probability, which is rounded to this type, and counts as 0 if it is denormal in f32.
float product_with_p(float p, float x, DType type) {
  return product(std::abs(p) < 0x1p-126f && !std::isfinite(x) ? 0 : rounded(p, type), x);
}

/// Sums of p times rows of a matrix, over equal p.
class Alike {
 public:
  void add(float p, std::int64_t row) {
    // 13 bits of the fraction: 16-bit types have 7 or 10, and dense attention and engines differ in the last bits.
    terms_.push_back({std::bit_cast<std::uint32_t>(p) >> 10, p, row});
  }
  /// The squares of the sums, added up.
  double squares(const Matrix& of) {
    std::ranges::stable_sort(terms_, {}, &Term::bits);
    std::vector<double> sum(static_cast<std::size_t>(of.columns));
    double out = 0;
    for (std::size_t i = 0; i < terms_.size(); ++i) {
      const Term& term = terms_[i];
      for (std::int64_t c = 0; c < of.columns; ++c)
        if (const float x = term.p * of(term.row, c); std::isfinite(x)) sum[static_cast<std::size_t>(c)] += double{x};
      if (i + 1 < terms_.size() && terms_[i + 1].bits == term.bits) continue;
      for (double& x : sum) out += x * x, x = 0;
    }
    return out;
  }

 private:
  struct Term {
    std::uint32_t bits;
    float p;
    std::int64_t row;
  };
  std::vector<Term> terms_;
};

/// What the roundings of a sink's exponent of two add to a row of o, as a square. Below a sink, o has the factor 2^(max
/// - sink), so all of the row is off by the same share: ln 2 times the exponent's error. The kernel rounds log2(e),
/// 2^-26 of the exponent; the product with it, half a unit in the last place; and the difference, half a unit again.
double squares_of_exponents(const Matrix& o, std::int64_t i, float sink, float max) {
  if (!(sink > max) || !std::isfinite(sink) || !std::isfinite(max)) return 0;
  const double exponent = std::max(std::abs(double{sink}), double{sink} - max) * std::numbers::log2e;
  const double unit = std::ldexp(1.0, std::ilogb(exponent) - 23),
               share = std::numbers::ln2 * (0x1p-26 * exponent + unit);
  double out = 0;
  for (std::int64_t c = 0; c < o.columns; ++c)
    if (std::isfinite(o(i, c))) out += share * share * double{o(i, c)} * double{o(i, c)};
  return out;
}

/// For each column, the sum of its absolute values.
class Absolutes {
 public:
  void add(double factor, const Matrix& from, std::int64_t j) {
    sums_.resize(static_cast<std::size_t>(from.columns));
    for (std::int64_t c = 0; c < from.columns; ++c)
      if (const double x = factor * std::abs(double{from(j, c)}); std::isfinite(x))
        sums_[static_cast<std::size_t>(c)] += x;
  }
  double squares() const {
    double out = 0;
    for (const double x : sums_) out += x * x;
    return out;
  }

 private:
  std::vector<double> sums_;
};

/// The value that an expression would have if no terms cancelled: each rounding error within it is relative to that.
class SizeOf {
 public:
  ir::Expr operator()(const ir::Expr& e) {
    ir::Expr& size = known_[e->digest];
    if (!size) size = made(e);
    return size;
  }

 private:
  ir::Expr made(const ir::Expr& e) {
    using ir::Op;
    switch (e->op) {
      case Op::Add:
      case Op::Sub: return ir::op(Op::Add, (*this)(e->args[0]), (*this)(e->args[1]));
      case Op::Mul: return ir::op(Op::Mul, (*this)(e->args[0]), (*this)(e->args[1]));
      case Op::Div: return ir::op(Op::Div, (*this)(e->args[0]), ir::op(Op::Abs, e->args[1]));
      case Op::Neg: return (*this)(e->args[0]);
      default: return ir::op(Op::Abs, e);
    }
  }
  std::map<ir::Digest, ir::Expr> known_;  // references stay valid while others are added
};

/// Where a head's rows lie in each tensor of a call.
struct Places {
  const Problem& problem;
  Sequence seq;
  std::int64_t h;
  MatrixLayout q(const Tensor& t) const { return runtime::matrix(t, problem.q.layout, seq.b, h, seq.q_start); }
  MatrixLayout kv(const Tensor& t) const {
    return runtime::matrix(t, problem.kv.layout, seq.kv_b, h / problem.group, seq.kv_start);
  }
  MatrixLayout line(const Tensor& t) const { return runtime::column(t, problem.q.layout, seq.b, h, seq.q_start); }
};

void each_head(const Problem& problem, const std::function<void(const Places&)>& body) {
  for (std::int64_t b = 0; b < problem.batch; ++b)
    for (std::int64_t h = 0; h < problem.q_heads; ++h) body({problem, runtime::sequence(problem, b), h});
}

/// A gradient that is summed over heads and batch entries, in contiguous f32.
struct Sum {
  explicit Sum(const Tensor& like)
      : shape(like), values(static_cast<std::size_t>(like.size())), flushed(values.size()) {
    std::int64_t step = 1;
    for (std::size_t i = static_cast<std::size_t>(like.rank); i-- > 0; step *= like.shape[i]) shape.strides[i] = step;
  }
  void store(const Tensor& into) const {
    if (!into.given()) return;
    Tensor::Extents n{1, 1, 1, 1};
    std::copy_n(into.shape.begin(), into.rank, n.begin());
    std::size_t next = 0;
    for (std::int64_t a = 0; a < n[0]; ++a)
      for (std::int64_t b = 0; b < n[1]; ++b)
        for (std::int64_t c = 0; c < n[2]; ++c)
          for (std::int64_t d = 0; d < n[3]; ++d)
            runtime::store(into, runtime::offset(into, a, b, c, d), static_cast<double>(values[next++]));
  }
  void add(const MatrixLayout& at, const Matrix& m) {
    for (std::int64_t i = 0; i < m.rows; ++i)
      for (std::int64_t j = 0; j < m.columns; ++j)
        values[static_cast<std::size_t>(at.origin + i * at.row + j * at.column)] += m(i, j);
  }

  Tensor shape;  ///< its data is not used
  std::vector<float> values;
  std::vector<double> flushed;  ///< for each element, Flow::flushed times derivatives
  double squares = 0;           ///< of the terms of the sum, with dp and delta separate
  double whole_squares = 0;
  std::map<std::size_t, double> by_delta{};  ///< of a row: how much less each element is if the row's delta is 1 more
  double delta_squares = 0;                  ///< of the same times the products that delta sums
  std::int64_t terms = 0;

  void end_row(double squares_of_products) {
    for (const auto& [element, x] : by_delta)
      if (const double square = squares_of_products * x * x; std::isfinite(square)) delta_squares += square;
    by_delta.clear();
  }

  /// How large the sums would be if nothing cancelled. Each addition rounds the partial sum, so a sum's error grows
  /// with the square root of the number of terms added in sequence; in blocks of blocks, as in engines, with the fourth
  /// root of their total. From 64 terms per value on, that exceeds the four units in the last place that agree.h
  /// grants.
  double apart() const {
    const double of_each = static_cast<double>(terms) / static_cast<double>(std::max<std::size_t>(values.size(), 1));
    return std::sqrt(squares) * std::max(1.0, std::pow(of_each / 64, 0.25));
  }
};

/// What flows to an expression at a pair, or at a row's sink.
struct Flow {
  float value;
  double size;          ///< that of the terms whose sum is `value`, without regard to signs
  double flushed = 0;   ///< how much less it may be, in units of 2^-126, because p may count as 0
  double by_delta = 0;  ///< how much less it is if the row's delta is 1 more; 0 too if nobody asks
};

/// One expression's captured gradients that the call asks for.
class Scatters {
 public:
  Scatters(const std::vector<compiler::Scatter>& all, const BoundMod& bound, const Backward& call,
           std::vector<Sum>& sums) {
    for (const compiler::Scatter& scatter : all)
      for (std::size_t i = 0; i < call.captured.size(); ++i)
        if (bound.slots.captures[scatter.capture] == call.captured[i].of) {
          std::vector<ir::Expr> roots = scatter.index;
          roots.push_back(scatter.value);
          terms_.push_back({scatter.loops, ir::Program(roots), &sums[i]});
        }
  }

  void add(const Flow& flow, Evaluator& at) {
    std::vector<std::int32_t> bound(ir::max_binders + 1);
    at.env.bound = bound;
    for (const Term& term : terms_) add(flow, at, term, bound, 0);
    at.env.bound = {};
  }

 private:
  struct Term {
    std::vector<compiler::Scatter::Loop> loops;
    ir::Program program;
    Sum* sum;
  };

  static void add(const Flow& flow, Evaluator& at, const Term& term, std::vector<std::int32_t>& bound,
                  std::size_t loop) {
    if (loop < term.loops.size()) {
      const auto [binder, count] = term.loops[loop];
      for (std::uint32_t i = 0; i < count; ++i) {
        bound[binder] = static_cast<std::int32_t>(i);
        add(flow, at, term, bound, loop + 1);
      }
      return;
    }
    at(term.program);
    const Tensor& of = term.sum->shape;
    std::int64_t element = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(of.rank); ++i)
      element += std::clamp<std::int64_t>(static_cast<std::int64_t>(at.result(term.program, i)), 0, of.shape[i] - 1) *
                 of.strides[i];
    const float value = at.result(term.program, static_cast<std::size_t>(of.rank));
    term.sum->values[static_cast<std::size_t>(element)] += product(flow.value, value);
    // A non-finite term makes its element so, which is not judged; others are.
    const auto square = [&](double x) {
      const double out = x * x * double{value} * double{value};
      return std::isfinite(out) ? out : 0;
    };
    term.sum->squares += square(flow.size);
    term.sum->whole_squares += square(double{flow.value});
    if (const double x = flow.flushed * std::abs(double{value}); std::isfinite(x))
      term.sum->flushed[static_cast<std::size_t>(element)] += x;
    if (flow.by_delta != 0) term.sum->by_delta[static_cast<std::size_t>(element)] += flow.by_delta * double{value};
    ++term.sum->terms;
  }

  std::vector<Term> terms_;
};

}  // namespace

namespace {

/// Merges results over other keys into a head's results.
void merge(Matrix& o, std::vector<float>& lse, const Forward& call, const Places& at) {
  const Matrix before = read(call.o_before, at.q(call.o_before), o.rows, o.columns);
  const MatrixLayout line = at.line(call.lse_before);
  for (std::int64_t i = 0; i < o.rows; ++i) {
    float& own = lse[static_cast<std::size_t>(i)];
    const auto theirs = static_cast<float>(runtime::load(call.lse_before, line.origin + i * line.row));
    if (theirs == -infinity) continue;
    const float top = std::max(own, theirs), a = std::exp(own - top), b = std::exp(theirs - top);
    for (std::int64_t j = 0; j < o.columns; ++j)
      o(i, j) = (a == 0 ? 0 : o(i, j) * (a / (a + b))) + before(i, j) * (b / (a + b));
    own = top + std::log(a + b);
  }
}

}  // namespace

Terms dense_forward(const BoundMod& bound, const Forward& call, const Problem& problem, DType products,
                    bool wants_terms) {
  const double products_rounding = half_unit(products);
  double alike_squares = 0, flushed_squares = 0, exponent_squares = 0;
  const bool continues = call.o_before.given();
  BoundMod own = bound;
  if (continues) own.mod.sink = nullptr;  // it has joined before
  Dense dense(own, problem);
  each_head(problem, [&](const Places& at) {
    const Matrix q = read(call.q, at.q(call.q), at.seq.q_len, problem.d);
    const runtime::KeyRows keys(problem, call.page_table, at.seq, at.h / problem.group);
    const Matrix k = read(call.k, keys, at.seq.kv_len, problem.d);
    const Matrix v = read(call.v, keys, at.seq.kv_len, problem.dv);
    Products q_k(q, k, products == DType::e4m3);
    Head head = dense.head(at.seq, at.h, q_k);
    Matrix o(at.seq.q_len, problem.dv);
    for (std::int64_t i = 0; i < o.rows; ++i) {
      const auto row = static_cast<std::size_t>(i);
      float factor = 1;
      if (products == DType::e4m3) {
        float most = 0;
        for (std::int64_t j = 0; j < k.rows; ++j)
          if (head.keeps(i, j)) dense.place(head, i, j), most = std::max(most, std::abs(dense.prob()));
        if (most > 0 && std::isfinite(most)) factor = std::ldexp(1.0f, 7 - std::ilogb(most));
      }
      Alike alike;
      Absolutes flushed;
      const float lse = head.lse[row];
      for (std::int64_t j = 0; j < k.rows; ++j) {
        if (!head.keeps(i, j)) continue;
        dense.place(head, i, j);
        const float p = std::isnan(lse) ? lse : dense.prob();
        add_row(o, i, rounded(p * factor, products) / factor, v, j);
        if (wants_terms && products_rounding > 0) alike.add(p, j);
        if (may_be_flushed(head.p(i, j)) || (p != 0 && may_be_flushed(p))) flushed.add(1, v, j);
      }
      alike_squares += alike.squares(v);
      flushed_squares += flushed.squares();
      exponent_squares += squares_of_exponents(o, i, head.sink[row], head.max[row]);
    }
    if (continues) merge(o, head.lse, call, at);
    write(call.o, at.q(call.o), o);
    if (call.lse.given()) write(call.lse, at.line(call.lse), head.lse);
    if (call.max.given()) write(call.max, at.line(call.max), head.max);
  });
  return {.operands = std::sqrt(products_rounding * products_rounding * alike_squares + exponent_squares),
          .flushed = std::sqrt(flushed_squares)};
}

// For the equations see the oracle's backward.
std::vector<Terms> dense_backward(const BoundMod& bound, const Backward& call, const Problem& problem, int lse_steps,
                                  const BoundMod* forward, bool wants_terms) {
  const compiler::Mod& mod = bound.mod;
  const DType type = call.q.dtype;
  Dense dense(bound, problem);
  std::optional<Dense> first;
  if (forward) first.emplace(*forward, problem);
  const ir::Program dscore(mod.dscore.by), dprob(mod.dprob.by);
  // The terms of s / s's derivative cancel; each of them is rounded.
  const ir::Program dscore_size(SizeOf()(mod.dscore.by));
  const double degree = codegen::delta_degree(mod.prob);
  const bool wants_roundings = wants_terms && half_unit(type) > 0;
  std::vector<Sum> captured;
  for (const Backward::Captured& asked : call.captured) captured.emplace_back(asked.of);
  Scatters by_score(mod.dscore.captures, bound, call, captured), by_prob(mod.dprob.captures, bound, call, captured),
      by_sink(mod.dsink.captures, bound, call, captured);
  Sum dk_sum(call.k), dv_sum(call.v);
  double dq_squares = 0, dq_operands = 0, dk_operands = 0, dv_alike = 0, dq_flushed = 0, dk_flushed = 0, dv_flushed = 0;
  each_head(problem, [&](const Places& at) {
    const Matrix q = read(call.q, at.q(call.q), at.seq.q_len, problem.d);
    const Matrix k = read(call.k, at.kv(call.k), at.seq.kv_len, problem.d);
    const Matrix v = read(call.v, at.kv(call.v), at.seq.kv_len, problem.dv);
    const Matrix grad_o = read(call.grad_o, at.q(call.grad_o), at.seq.q_len, problem.dv);
    Products q_k(q, k), grad_o_v(grad_o, v);
    Head head = dense.head(at.seq, at.h, q_k);
    if (first) head.lse = first->head(at.seq, at.h, q_k).lse;
    const std::vector<double> q_squares = squares_of_rows(q), k_squares = squares_of_rows(k);
    Matrix dq(q.rows, q.columns), dk(k.rows, k.columns), dv(v.rows, v.columns), dp(q.rows, k.rows);
    std::vector<Alike> alike(static_cast<std::size_t>(k.rows));
    std::vector<Absolutes> of_dk(alike.size()), of_dv(alike.size());
    for (std::int64_t i = 0; i < q.rows; ++i) {
      const MatrixLayout line = call.grad_lse.given() ? at.line(call.grad_lse) : MatrixLayout{};
      const float dlse = call.grad_lse.given()
                             ? static_cast<float>(runtime::load(call.grad_lse, line.origin + i * line.row))
                             : 0;
      dense.from_lse(head, i, lse_steps);
      float delta = 0;
      Matrix o(1, v.columns), afters(k.rows, 1);
      Alike summed;
      for (std::int64_t j = 0; j < k.rows; ++j) {
        if (!head.keeps(i, j)) continue;
        dense.place(head, i, j);
        const float p = dense.prob(), operand = rounded(p, type);
        add_row(o, 0, operand, v, j);
        add_row(dv, j, operand, grad_o, i);
        if (wants_roundings) alike[static_cast<std::size_t>(j)].add(p, i), summed.add(p, j);
        if (may_be_flushed(head.p(i, j)) || (p != 0 && may_be_flushed(p)))
          of_dv[static_cast<std::size_t>(j)].add(1, grad_o, i);
        const float after = afters(j, 0) = grad_o_v(i, j);
        const float slope = dense.value(dprob);
        if (dense.is_skipped(slope)) continue;
        by_prob.add({after, std::abs(double{after})}, dense.evaluator());
        dp(i, j) = after * slope;
        delta += product_with_p(head.p(i, j), dp(i, j), type);
      }
      // A backward gets o, rounded, and need not sum over the keys again. Its forward has rounded each p before P V.
      double of_delta = 0;
      if (degree > 0) {
        if (wants_roundings) of_delta = summed.squares(afters);
        for (std::int64_t c = 0; c < o.columns; ++c) {
          o(0, c) = rounded(o(0, c), type);
          if (wants_roundings) of_delta += std::pow(double{grad_o(i, c)} * double{o(0, c)}, 2);
        }
        delta = static_cast<float>(degree) * dot(grad_o, i, o, 0);
        of_delta *= degree * degree;
      }
      const auto by_delta = [&](float p) { return of_delta > 0 ? double{p} : 0; };
      Absolutes of_dq;
      for (std::int64_t j = 0; j < k.rows; ++j) {
        if (!head.keeps(i, j)) continue;
        dense.place(head, i, j);
        if (dense.is_skipped(dense.value(dprob))) continue;  // so that a NaN delta of others does not reach it
        const float after = product_with_p(head.p(i, j), dp(i, j) - delta + dlse, type);
        const double of_p = std::abs(double{dp(i, j)}) + std::abs(double{delta}) + std::abs(double{dlse}),
                     size = double{head.p(i, j)} * of_p;
        by_score.add({after, size, may_be_flushed(head.p(i, j)) ? of_p : 0, by_delta(head.p(i, j))}, dense.evaluator());
        const double slope = double{dense.value(dscore_size)} * std::abs(problem.scale);
        const float ds = rounded(product(after, dense.value(dscore)), type) * static_cast<float>(problem.scale);
        dq_squares += size * size * slope * slope * k_squares[static_cast<std::size_t>(j)];
        dk_sum.squares += size * size * slope * slope * q_squares[static_cast<std::size_t>(i)];
        if (half_unit(type) > 0 && std::isfinite(ds)) {
          dq_operands += double{ds} * double{ds} * k_squares[static_cast<std::size_t>(j)];
          dk_operands += double{ds} * double{ds} * q_squares[static_cast<std::size_t>(i)];
        }
        if (may_be_flushed(head.p(i, j))) {
          of_dq.add(of_p * slope, k, j);
          of_dk[static_cast<std::size_t>(j)].add(of_p * slope, q, i);
        }
        add_row(dq, i, ds, k, j);
        add_row(dk, j, ds, q, i);
      }
      dq_flushed += of_dq.squares();
      dense.place(head, i, k.rows);
      const auto row = static_cast<std::size_t>(i);
      if (const float p = head.sink_p[row]; head.sink[row] != -infinity) {
        const double of_p = std::abs(double{dlse}) + std::abs(double{delta});
        by_sink.add({p * (dlse - delta), double{p} * of_p, may_be_flushed(p) ? of_p : 0, by_delta(p)},
                    dense.evaluator());
      }
      for (Sum& sum : captured) sum.end_row(of_delta);
    }
    // The heads that share keys add up.
    const auto sharers = static_cast<double>(problem.group);
    for (std::size_t j = 0; j < alike.size(); ++j) {
      dv_alike += sharers * alike[j].squares(grad_o);
      dk_flushed += sharers * of_dk[j].squares();
      dv_flushed += sharers * of_dv[j].squares();
    }
    if (call.dq.given()) write(call.dq, at.q(call.dq), dq);
    dk_sum.add(at.kv(dk_sum.shape), dk);
    dv_sum.add(at.kv(dv_sum.shape), dv);
  });
  dk_sum.store(call.dk);
  dv_sum.store(call.dv);
  std::vector<Terms> terms{{.apart = std::sqrt(dq_squares),
                            .operands = half_unit(type) * std::sqrt(dq_operands),
                            .flushed = std::sqrt(dq_flushed)},
                           {.apart = std::sqrt(dk_sum.squares),
                            .operands = half_unit(type) * std::sqrt(dk_operands),
                            .flushed = std::sqrt(dk_flushed)},
                           {.operands = half_unit(type) * std::sqrt(dv_alike), .flushed = std::sqrt(dv_flushed)}};
  for (std::size_t i = 0; i < captured.size(); ++i) {
    captured[i].store(call.captured[i].into);
    double flushed = 0;
    for (const double x : captured[i].flushed) flushed += x * x;
    terms.push_back({.apart = captured[i].apart(),
                     .whole = std::sqrt(captured[i].whole_squares + captured[i].delta_squares),
                     .flushed = std::sqrt(flushed)});
  }
  return terms;
}

}  // namespace attune::tests
