// ir/interval.cpp — interval arithmetic, one case for each op
#include "ir/range.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include <attune/error.h>

namespace attune::ir {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr std::int64_t least_i32 = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t greatest_i32 = std::numeric_limits<std::int32_t>::max();
/// The largest error of a library function in f32; it need not be monotone.
constexpr int library_ulps = 8;

bool holds_infinity(const Interval& x) { return x.numbers() && (x.lo == -inf || x.hi == inf); }
bool holds_zero(const Interval& x) { return x.lo <= 0 && 0 <= x.hi; }

// ---- Int: whole bounds within i32, computed in 64 bits ----

struct Whole {
  std::int64_t lo, hi;
};
Whole whole(const Interval& x) { return {static_cast<std::int64_t>(x.lo), static_cast<std::int64_t>(x.hi)}; }

/// [lo, hi] if both fit an Int, else every Int, since the value may wrap.
Interval unless_wrapped(std::int64_t lo, std::int64_t hi) {
  if (lo < least_i32 || hi > greatest_i32) return Interval::all(Type::I32);
  return {static_cast<double>(lo), static_cast<double>(hi), false};
}

/// The span of `f` over the four pairs of ends: correct if f is monotone in each argument.
template <class F>
Interval of_ends(Whole x, Whole y, F f) {
  const auto [lo, hi] = std::minmax({f(x.lo, y.lo), f(x.lo, y.hi), f(x.hi, y.lo), f(x.hi, y.hi)});
  return unless_wrapped(lo, hi);
}

std::int64_t floor_quotient(std::int64_t x, std::int64_t y) { return x / y - (x % y != 0 && (x < 0) != (y < 0)); }

/// A division, with negative, zero and positive divisors taken separately; x by 0 is 0.
template <class F>
Interval by_sign(Whole x, Whole y, F f) {
  Interval all = y.lo <= 0 && 0 <= y.hi ? Interval::point(0) : Interval::none();
  if (y.lo < 0) all = unite(all, f(x, Whole{y.lo, std::min<std::int64_t>(y.hi, -1)}));
  if (y.hi > 0) all = unite(all, f(x, Whole{std::max<std::int64_t>(y.lo, 1), y.hi}));
  return all;
}

Interval divided(Whole x, Whole y) {
  return of_ends(x, y, [](std::int64_t a, std::int64_t b) { return a / b; });
}
Interval floor_divided(Whole x, Whole y) { return of_ends(x, y, floor_quotient); }

Interval truncated_remainder(Whole x, Whole y) {
  const std::int64_t least = std::min(std::abs(y.lo), std::abs(y.hi));
  const std::int64_t most = std::max(std::abs(y.lo), std::abs(y.hi)) - 1;
  if (x.lo > -least && x.hi < least) return unless_wrapped(x.lo, x.hi);
  if (y.lo == y.hi && x.lo / y.lo == x.hi / y.lo && (x.lo >= 0 || x.hi <= 0))
    return unless_wrapped(x.lo % y.lo, x.hi % y.lo);
  return unless_wrapped(x.lo < 0 ? std::max(x.lo, -most) : 0, x.hi > 0 ? std::min(x.hi, most) : 0);
}

Interval floor_remainder(Whole x, Whole y) {
  if (y.lo == y.hi && floor_quotient(x.lo, y.lo) == floor_quotient(x.hi, y.lo)) {
    const std::int64_t block = floor_quotient(x.lo, y.lo) * y.lo;
    return unless_wrapped(x.lo - block, x.hi - block);
  }
  if (y.lo > 0)
    return unless_wrapped(x.lo >= 0 && x.hi < y.lo ? x.lo : 0, x.lo >= 0 ? std::min(x.hi, y.hi - 1) : y.hi - 1);
  return unless_wrapped(x.hi <= 0 ? std::max(x.lo, y.lo + 1) : y.lo + 1, x.hi <= 0 && x.lo > y.hi ? x.hi : 0);
}

/// The smallest 2^n such that [-2^n, 2^n - 1] holds both.
std::int64_t span_of(Whole x, Whole y) {
  const std::int64_t most = std::max({x.hi, y.hi, ~x.lo, ~y.lo, std::int64_t{0}});
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(most) + 1));
}

Interval bits_and(Whole x, Whole y) {
  const bool x_positive = x.lo >= 0, y_positive = y.lo >= 0;
  std::int64_t hi = std::max(x.hi, y.hi);
  if ((x_positive && y_positive) || (x.hi < 0 && y.hi < 0))
    hi = std::min(x.hi, y.hi);
  else if (x_positive)
    hi = x.hi;
  else if (y_positive)
    hi = y.hi;
  return unless_wrapped(x_positive || y_positive ? 0 : -span_of(x, y), hi);
}
Whole flipped(Whole x) { return {~x.hi, ~x.lo}; }
Interval bits_or(Whole x, Whole y) {
  const Whole both = whole(bits_and(flipped(x), flipped(y)));
  return unless_wrapped(~both.hi, ~both.lo);
}
Interval bits_xor(Whole x, Whole y) {
  const std::int64_t span = span_of(x, y);
  const bool alike = (x.lo >= 0 && y.lo >= 0) || (x.hi < 0 && y.hi < 0);
  const bool unlike = (x.lo >= 0 && y.hi < 0) || (x.hi < 0 && y.lo >= 0);
  return unless_wrapped(alike ? 0 : -span, unlike ? -1 : span - 1);
}

/// A shift's count, masked to 5 bits.
Whole count_of(Whole y) {
  if (y.lo == y.hi) return {y.lo & 31, y.lo & 31};
  return y.lo >= 0 && y.hi <= 31 ? y : Whole{0, 31};
}

/// abs(INT_MIN) wraps.
Interval int_abs(Whole x) {
  if (x.lo >= 0) return unless_wrapped(x.lo, x.hi);
  return unless_wrapped(x.hi <= 0 ? -x.hi : 0, std::max(-x.lo, x.hi));
}

// ---- Float ----

double whole_saturated(double x) {
  return std::clamp(std::trunc(x), static_cast<double>(least_i32), static_cast<double>(greatest_i32));
}

/// The least and greatest of some bounds. A NaN among them is 0 * inf or inf / inf. It counts as 0: the values of
/// nearby arguments include 0, and their other extreme is another bound.
Interval spanning(std::initializer_list<double> bounds, bool nan) {
  Interval all = Interval::none();
  for (const double b : bounds) all = unite(all, Interval::point(std::isnan(b) ? 0 : b));
  return {all.lo, all.hi, nan};
}

Interval added(const Interval& x, const Interval& y) {
  const bool opposite = (x.hi == inf && y.lo == -inf) || (x.lo == -inf && y.hi == inf);
  const double lo = x.lo + y.lo, hi = x.hi + y.hi;
  return outward({std::isnan(lo) ? -inf : lo, std::isnan(hi) ? inf : hi, x.nan || y.nan || opposite});
}

Interval multiplied(const Interval& x, const Interval& y) {
  const bool nan = x.nan || y.nan || (holds_zero(x) && holds_infinity(y)) || (holds_infinity(x) && holds_zero(y));
  return outward(spanning({x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi}, nan));
}

Interval quotient(const Interval& x, const Interval& y) {
  const bool nan = x.nan || y.nan || (holds_zero(x) && holds_zero(y)) || (holds_infinity(x) && holds_infinity(y));
  if (holds_zero(y)) return {-inf, inf, nan};  // a zero of either sign
  return outward(spanning({x.lo / y.lo, x.lo / y.hi, x.hi / y.lo, x.hi / y.hi}, nan));
}

Interval negated(const Interval& x) { return {-x.hi, -x.lo, x.nan}; }

Interval absolute(const Interval& x) {
  if (x.lo >= 0) return x;
  return {x.hi <= 0 ? -x.hi : 0, std::max(-x.lo, x.hi), x.nan};
}

/// An increasing function with values in [least, most]; below `domain` it is NaN.
template <class F>
Interval growing(const Interval& x, F f, double least, double most, double domain = -inf, int ulps = library_ulps) {
  const bool nan = x.nan || x.lo < domain;
  if (x.hi < domain) return {inf, -inf, nan};
  const Interval image = outward({f(std::max(x.lo, domain)), f(x.hi), nan}, ulps);
  return {std::max(image.lo, least), std::min(image.hi, most), nan};
}

template <class F>
Interval stepped(const Interval& x, F f) {
  return {f(x.lo), f(x.hi), x.nan};
}

Interval rsqrt(const Interval& x) {
  const bool nan = x.nan || x.lo < 0;
  if (x.hi < 0) return {inf, -inf, nan};
  if (holds_zero(x)) return {-inf, inf, nan};  // a zero of either sign
  const Interval image = outward({1 / std::sqrt(x.hi), 1 / std::sqrt(x.lo), nan}, library_ulps);
  return {std::max(image.lo, 0.0), image.hi, nan};
}

Interval power_of_numbers(const Interval& x, const Interval& y) {
  if (x.lo >= 0) {
    // Monotone in each argument; the other argument decides the direction.
    const double low = x.lo + 0.0, high = x.hi + 0.0;  // not -0: the powers of -0 differ
    const Interval ends = spanning(
        {std::pow(low, y.lo), std::pow(low, y.hi), std::pow(high, y.lo), std::pow(high, y.hi)}, false);
    const Interval image = outward(ends, library_ulps);
    const bool minus_infinity = holds_zero(x) && y.lo < 0;  // -0 to a negative odd power
    return {minus_infinity ? -inf : std::max(image.lo, 0.0), image.hi, false};
  }
  if (y.lo == y.hi && std::fabs(y.lo) < 0x1p24 && y.lo == std::trunc(y.lo) && y.lo >= 0) {
    const double lo = std::pow(x.lo, y.lo), hi = std::pow(x.hi, y.lo);
    if (std::fmod(y.lo, 2) != 0) return outward({lo, hi, false}, library_ulps);
    const Interval image = outward(
        {holds_zero(x) ? 0 : std::min(lo, hi), std::max({lo, hi, y.lo == 0 ? 1.0 : 0.0}), false}, library_ulps);
    return {std::max(image.lo, 0.0), image.hi, false};
  }
  return Interval::all(Type::F32);
}

Interval power(const Interval& x, const Interval& y) {
  Interval all = x.numbers() && y.numbers() ? power_of_numbers(x, y) : Interval::none();
  // pow(NaN, 0) = 1 and pow(1, NaN) = 1.
  if ((x.nan && y.numbers() && holds_zero(y)) || (y.nan && x.contains(1))) all = unite(all, Interval::point(1));
  all.nan = all.nan || (x.nan && !y.is(0)) || (y.nan && !x.is(1));
  return all;
}

Interval waved(const Interval& x) { return {-1, 1, x.nan || holds_infinity(x)}; }

Interval tangent(const Interval& x) {
  // It increases within half a period; 1.5 keeps clear of the pole.
  if (x.lo >= -1.5 && x.hi <= 1.5)
    return growing(
        x, [](double a) { return std::tan(a); }, -inf, inf);
  return {-inf, inf, x.nan || holds_infinity(x)};
}

/// min, and max by negation: if one operand is NaN, the result is the other.
Interval lesser(const Interval& x, const Interval& y) {
  Interval all = Interval::none();
  if (x.numbers() && y.numbers()) all = {std::min(x.lo, y.lo), std::min(x.hi, y.hi), false};
  if (x.nan && y.numbers()) all = unite(all, {y.lo, y.hi, false});
  if (y.nan && x.numbers()) all = unite(all, {x.lo, x.hi, false});
  all.nan = x.nan && y.nan;
  return all;
}
Interval greater(const Interval& x, const Interval& y) { return negated(lesser(negated(x), negated(y))); }

// ---- Bool ----

Interval decided(bool always, bool never) { return {always ? 1.0 : 0.0, never ? 0.0 : 1.0, false}; }

Interval equal(const Interval& x, const Interval& y) {
  const bool always = x.lo == x.hi && y.is(x.lo) && !x.nan;
  return decided(always, !(x.numbers() && y.numbers() && x.lo <= y.hi && y.lo <= x.hi));
}
Interval less(const Interval& x, const Interval& y) {
  const bool numbers = x.numbers() && y.numbers();
  return decided(numbers && !x.nan && !y.nan && x.hi < y.lo, !numbers || x.lo >= y.hi);
}
Interval less_or_equal(const Interval& x, const Interval& y) {
  const bool numbers = x.numbers() && y.numbers();
  return decided(numbers && !x.nan && !y.nan && x.hi <= y.lo, !numbers || x.lo > y.hi);
}
Interval opposite(const Interval& x) { return {1 - x.hi, 1 - x.lo, false}; }

bool answers_to_nan(Op op) {
  return op == Op::Where || op == Op::Min || op == Op::Max || op == Op::Clamp || op == Op::Pow || op == Op::Eq ||
         op == Op::Ne || op == Op::Lt || op == Op::Le || op == Op::Gt || op == Op::Ge || op == Op::I32 ||
         op == Op::Custom;
}

}  // namespace

Interval Interval::all(Type type) {
  switch (type) {
    case Type::Bool: return {0, 1, false};
    case Type::I32: return {static_cast<double>(least_i32), static_cast<double>(greatest_i32), false};
    case Type::F32: return {-inf, inf, true};
  }
  throw Bug("a type does not exist");
}
Interval Interval::none() { return {inf, -inf, false}; }
Interval Interval::point(double value) {
  return std::isnan(value) ? Interval{inf, -inf, true} : Interval{value, value, false};
}
bool Interval::contains(double value) const { return std::isnan(value) ? nan : lo <= value && value <= hi; }

Interval unite(const Interval& a, const Interval& b) {
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi), a.nan || b.nan};
}
Interval intersect(const Interval& a, const Interval& b) {
  const Interval both{std::max(a.lo, b.lo), std::min(a.hi, b.hi), a.nan && b.nan};
  return both.numbers() ? both : Interval{inf, -inf, both.nan};
}
bool within(const Interval& inner, const Interval& outer) {
  return (!inner.numbers() || (outer.lo <= inner.lo && inner.hi <= outer.hi)) && (!inner.nan || outer.nan);
}

bool difference_fits(const Interval& a, const Interval& b) {
  constexpr double most = std::numeric_limits<std::int32_t>::max();
  return a.lo - b.hi >= -most && a.hi - b.lo <= most;
}

Interval outward(const Interval& x, int ulps) {
  if (!x.numbers()) return x;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float lo = static_cast<float>(x.lo), hi = static_cast<float>(x.hi);
  if (lo > x.lo) lo = std::nextafter(lo, -infinity);
  if (hi < x.hi) hi = std::nextafter(hi, infinity);
  for (int i = 0; i < ulps; ++i) {
    lo = std::nextafter(lo, -infinity);
    hi = std::nextafter(hi, infinity);
  }
  constexpr float least_normal = std::numeric_limits<float>::min();
  if (lo > 0 && lo < least_normal) lo = 0;
  if (hi < 0 && hi > -least_normal) hi = 0;
  return {lo, hi, x.nan};
}

// One case per operation, which makes the function long.
Interval apply(Op op, Type of_args, std::span<const Interval> args) {
  const Interval none = Interval::none();
  const Interval x = args.empty() ? none : args[0], y = args.size() < 2 ? none : args[1],
                 z = args.size() < 3 ? none : args[2];
  bool numbers = true, nan = false;
  for (const Interval& a : args) {
    if (a.empty()) return none;
    numbers = numbers && a.numbers();
    nan = nan || a.nan;
  }
  if (!numbers && !answers_to_nan(op)) return {inf, -inf, nan};
  const bool ints = of_args == Type::I32;
  const Whole a = ints ? whole(x) : Whole{}, b = ints && args.size() > 1 ? whole(y) : Whole{};
  switch (op) {
    case Op::Literal:
    case Op::Input:
    case Op::Param:
    case Op::Read:
    case Op::Bound:
    case Op::Field:
    case Op::Sum: break;
    case Op::Random: return {0, 1 - 0x1p-24, false};
    case Op::Kept: return {y.lo >= 65536 ? 1.0 : 0.0, y.hi <= 0 ? 0.0 : 1.0, false};
    case Op::Custom: return x;
    case Op::Where: return x.is(1) ? y : x.is(0) ? z : unite(y, z);
    case Op::Or: return {std::max(x.lo, y.lo), std::max(x.hi, y.hi), false};
    case Op::And: return {std::min(x.lo, y.lo), std::min(x.hi, y.hi), false};
    case Op::BitOr: return bits_or(a, b);
    case Op::BitXor: return bits_xor(a, b);
    case Op::BitAnd: return bits_and(a, b);
    case Op::Eq: return equal(x, y);
    case Op::Ne: return opposite(equal(x, y));
    case Op::Lt: return less(x, y);
    case Op::Le: return less_or_equal(x, y);
    case Op::Gt: return less(y, x);
    case Op::Ge: return less_or_equal(y, x);
    case Op::Shl: return of_ends(a, count_of(b), [](std::int64_t v, std::int64_t n) { return v << n; });
    case Op::Shr: return of_ends(a, count_of(b), [](std::int64_t v, std::int64_t n) { return v >> n; });
    case Op::Add: return ints ? unless_wrapped(a.lo + b.lo, a.hi + b.hi) : added(x, y);
    case Op::Sub: return ints ? unless_wrapped(a.lo - b.hi, a.hi - b.lo) : added(x, negated(y));
    case Op::Mul: return ints ? of_ends(a, b, [](std::int64_t v, std::int64_t w) { return v * w; }) : multiplied(x, y);
    case Op::Div: return ints ? by_sign(a, b, divided) : quotient(x, y);
    case Op::Rem: return by_sign(a, b, truncated_remainder);
    case Op::Neg: return ints ? unless_wrapped(-a.hi, -a.lo) : negated(x);
    case Op::Not: return opposite(x);
    case Op::BitNot: return unless_wrapped(~a.hi, ~a.lo);
    case Op::F32: return outward(x);
    case Op::I32: {
      if (of_args != Type::F32) return x;
      const Interval numeric = x.numbers() ? Interval{whole_saturated(x.lo), whole_saturated(x.hi), false}
                                           : Interval::none();
      return x.nan ? unite(numeric, Interval::point(0)) : numeric;
    }
    case Op::FloorDiv: return by_sign(a, b, floor_divided);
    case Op::FloorMod: return by_sign(a, b, floor_remainder);
    case Op::Min: return lesser(x, y);
    case Op::Max: return greater(x, y);
    case Op::Clamp: return lesser(greater(x, y), z);
    case Op::Abs: return ints ? int_abs(a) : absolute(x);
    case Op::Floor: return stepped(x, [](double v) { return std::floor(v); });
    case Op::Ceil: return stepped(x, [](double v) { return std::ceil(v); });
    case Op::Round: return stepped(x, [](double v) { return std::round(v); });
    case Op::Trunc: return stepped(x, [](double v) { return std::trunc(v); });
    case Op::Sqrt:
      return growing(
          x, [](double v) { return std::sqrt(v); }, 0, inf, 0, 0);
    case Op::Rsqrt: return rsqrt(x);
    case Op::Exp:
      return growing(
          x, [](double v) { return std::exp(v); }, 0, inf);
    case Op::Exp2:
      return growing(
          x, [](double v) { return std::exp2(v); }, 0, inf);
    case Op::Log:
      return growing(
          x, [](double v) { return std::log(v); }, -inf, inf, 0);
    case Op::Log2:
      return growing(
          x, [](double v) { return std::log2(v); }, -inf, inf, 0);
    case Op::Pow: return power(x, y);
    case Op::Sin: return waved(x);
    case Op::Cos: return waved(x);
    case Op::Tan: return tangent(x);
    case Op::Tanh:
      return growing(
          x, [](double v) { return std::tanh(v); }, -1, 1);
    case Op::Sigmoid:
      return growing(
          x, [](double v) { return 1 / (1 + std::exp(-v)); }, 0, 1);
    case Op::Erf:
      return growing(
          x, [](double v) { return std::erf(v); }, -1, 1);
  }
  throw Bug("this has no range without Bounds: " + std::string(row(op).name));
}

}  // namespace attune::ir
