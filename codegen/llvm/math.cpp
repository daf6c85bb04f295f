// codegen/llvm/math.cpp — the language's f32 functions on vectors and scalars, without calls; its i32 divisions; f64
// arithmetic for both
#include "codegen/llvm/math.h"

#include <array>
#include <bit>
#include <limits>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>
#include <optional>

namespace attune::codegen {
namespace {

// ---- f64 arithmetic -------------------------------------------------------------------------------------------------

llvm::Type* as_wide_as(const Val& x, llvm::Type* element) { return Code::vector(element, x.lanes()); }

}  // namespace

Val widen(Val x) { return {x.code(), x.code().ir().CreateFPExt(x.get(), as_wide_as(x, x.code().f64()))}; }
Val narrow(Val x) { return {x.code(), x.code().ir().CreateFPTrunc(x.get(), as_wide_as(x, x.code().f32()))}; }
Val to_wide(Val x) { return {x.code(), x.code().ir().CreateSIToFP(x.get(), as_wide_as(x, x.code().f64()))}; }
Val wide_to_int(Val x) { return {x.code(), x.code().ir().CreateFPToSI(x.get(), as_wide_as(x, x.code().i32()))}; }
Val to_u64(Val x) { return {x.code(), x.code().ir().CreateZExt(x.get(), as_wide_as(x, x.code().i64()))}; }
Val bits_of_wide(Val x) { return {x.code(), x.code().ir().CreateBitCast(x.get(), as_wide_as(x, x.code().i64()))}; }
Val wide_of_bits(Val x) { return {x.code(), x.code().ir().CreateBitCast(x.get(), as_wide_as(x, x.code().f64()))}; }

Val polynomial(Val x, std::initializer_list<double> c) {
  const double* at = c.end() - 1;
  Val sum = like(x, *at);
  while (at != c.begin()) sum = fma(sum, x, like(x, *--at));
  return sum;
}

namespace {

// ---- divisions of i32 -----------------------------------------------------------------------------------------------

std::optional<std::int32_t> constant(const Val& x) {
  const auto* value = llvm::dyn_cast<llvm::ConstantInt>(x.get());
  if (!value) return std::nullopt;
  return static_cast<std::int32_t>(value->getSExtValue());
}

/// k for 2^k.
std::optional<int> power_of_two(const Val& x) {
  const auto value = constant(x);
  if (!value || *value <= 0 || !std::has_single_bit(static_cast<std::uint32_t>(*value))) return std::nullopt;
  return std::countr_zero(static_cast<std::uint32_t>(*value));
}

Val rounds_down(Val remainder, Val y) { return (remainder != 0) & ((remainder ^ y) < 0); }

}  // namespace

Val quotient(Val x, Val y) {
  if (const auto by = constant(y)) {
    if (*by == 0) return like(x, 0.0);
    return *by == -1 ? -x : x / y;
  }
  // No machine divides vectors of Ints, and scalar division would trap, so divide in f64: an i32 quotient that is not
  // whole is further from a whole number than the rounding error of f64.
  const Val exact = wide_to_int(to_wide(x) / to_wide(y));
  return select(y == 0, like(exact, 0.0), select(y == -1, -x, exact));
}

Val remainder(Val x, Val y) {
  const Val rest = x - quotient(x, y) * y;
  if (const auto by = constant(y)) return *by == 0 ? like(x, 0.0) : rest;
  return select(y == 0, like(rest, 0.0), rest);
}

Val floor_quotient(Val x, Val y) {
  if (const auto k = power_of_two(y)) return x >> *k;
  const Val q = quotient(x, y);
  const Val rest = select(y == 0, like(q, 0.0), x - q * y);
  return q - zero_one(rounds_down(rest, y));
}

Val floor_remainder(Val x, Val y) {
  if (power_of_two(y)) return x & (y - 1);
  const Val rest = remainder(x, y);
  return select(rounds_down(rest, y), rest + y, rest);
}

namespace {

// ---- functions of f32 -----------------------------------------------------------------------------------------------

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// True if an instruction computes p * 2^n, correct for every special value: only for this width of vectors.
bool has_scalef(Isa isa, const Val& x) { return isa >= Isa::avx512 && x.lanes() == 16; }

/// p * 2^floor(n), rounded once. By definition 0 for n = -inf and inf for n = inf, even if p is a (quiet) NaN.
Val scalef(Val p, Val n) {
  Code& code = p.code();
  const Val all{code, code.ir().getInt16(0xffff)}, rounding_as_set = code.integer(4);
  return code.intrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {}, {p, n, p, all, rounding_as_set});
}

/// Rounds a small number to the nearest whole one by adding 1.5 * 2^23, and 127 more, so that the low bits of the sum
/// are the exponent field of 2^value.
struct Whole {
  explicit Whole(Val x) : sum(x + magic), value(sum - magic) {}
  /// 2^value, for value in [-126, 127]; 0 for -127.
  Val power() const { return as_float(as_int(sum) << 23); }
  static constexpr double magic = 12582912 + 127;
  Val sum, value;
};

/// p * 2^n, rounded once, for n in [-252, 254].
Val scaled(Val p, const Whole& n) {
  const Val field = as_int(n.sum) - static_cast<std::int32_t>(0x4b400000), half = field >> 1;
  // field is n + 127; the halves are shifted so that they add up to n.
  return p * as_float((half + 64) << 23) * as_float((field - half + 63) << 23);
}

// The minimax polynomial of 2^f for |f| <= 1/2 with 2^0 = 1.
Val exp2_fraction(Val f, Degree degree) {
  if (degree == Degree::bf16) return polynomial(f, {1, 0.693282902, 0.242210954, 0.055009041});
  return polynomial(f, {1, 0.693146825, 0.240222365, 0.055509001, 0.00967179053, 0.00132226967});
}

/// exp(x) for x <= 89.
Val exp_below(Isa isa, Val x) {
  const Val clamped = max(like(x, -104.0), x);
  // ln 2 in two parts; the first has so few bits that its product with n is exact even without FMA.
  const auto rest = [&](Val n) { return fma(n, like(x, 2.12194440e-4), fma(n, like(x, -0.693359375), clamped)); };
  const auto exp_rest = [](Val r) {
    return polynomial(r, {1, 1, 0.49999994, 0.166665211, 0.0416682586, 0.00836866908, 0.00138213043});
  };
  const Val y = clamped * 1.44269504;
  if (has_scalef(isa, x)) {
    const Val n = round_even(y);
    return scalef(exp_rest(rest(n)), n);
  }
  const Whole n(y);
  return scaled(exp_rest(rest(n.value)), n);
}

/// log2(x) in f64, with relative error 2^-45.
Val log2_wide(Val x) {
  const Val bits = bits_of_wide(widen(x));
  // The exponent that leaves a mantissa in [sqrt(1/2), sqrt(2)).
  const Val exponent = (to_i32(shift_right_logical(bits, 32)) - 0x3fe6a09e) >> 20;
  const Val mantissa = wide_of_bits(bits - (to_i64(exponent) << 52));
  const Val s = (mantissa - 1) / (mantissa + 1);
  const Val log_mantissa = s * polynomial(s * s, {2.8853900817778508, 0.9617966941128091, 0.57707794245950961,
                                                  0.4122092455623545, 0.31990590994595008, 0.28289776060873478});
  const Val ordinary = to_wide(exponent) + log_mantissa;
  const Val special = select(x == 0, like(ordinary, -inf), select(x > 0, like(ordinary, inf), like(ordinary, nan)));
  return select((x > 0) & (x < inf), ordinary, special);
}

/// 2^t for t in f64, rounded to f32; relative error 2^-34 before rounding.
Val exp2_of_wide(Val t) {
  const Val clamped = min(like(t, 200), max(like(t, -200), t));
  const WideWhole n(clamped);
  const Val p = polynomial(clamped - n.value, {0.99999999996168198, 0.6931471807284495, 0.24022651198157283,
                                               0.055504103534408392, 0.009618027253842483, 0.0013333922576119594,
                                               0.00015469291028927747, 1.5201915799912029e-05});
  return narrow(p * n.power());
}

}  // namespace

Val exp2_softmax(Isa isa, Val x, Degree degree) {
  // At -inf the fraction is NaN, which scalef ignores.
  if (has_scalef(isa, x)) {
    const Val n = round_even(x);
    return scalef(exp2_fraction(x - n, degree), n);
  }
  const Val clamped = max(like(x, -127.0), x);
  const Whole n(clamped);
  return exp2_fraction(clamped - n.value, degree) * n.power();
}

Val exp2(Isa isa, Val x) {
  const auto fraction = [](Val f) {
    return polynomial(f, {1, 0.693147182, 0.240226477, 0.0555035993, 0.00961850584, 0.00133908063, 0.000153264627});
  };
  if (has_scalef(isa, x)) {
    const Val n = round_even(x);
    return scalef(fraction(x - n), n);
  }
  const Val clamped = min(like(x, 129.0), max(like(x, -151.0), x));
  const Whole n(clamped);
  return scaled(fraction(clamped - n.value), n);
}

Val exp(Isa isa, Val x) { return exp_below(isa, min(like(x, 89.0), x)); }

Val log2(Val x) { return narrow(log2_wide(x)); }
Val log(Val x) { return narrow(log2_wide(x) * 0.69314718055994531); }

Val pow(Isa isa, Val x, Val y) {
  const Val magnitude = exp2_of_wide(widen(y) * log2_wide(absolute(x)));
  const Val half = y * 0.5;
  const Val whole = y == trunc(isa, y), even = half == trunc(isa, half);
  const Val flips = (as_int(x) < 0) & whole & !even;
  const Val sized = select(flips, -magnitude, magnitude);
  const Val no_root = (x < 0) & (x > -inf) & !whole;
  const Val one = (y == 0) | (x == 1) | ((x == -1) & (absolute(y) == inf));
  return select(one, like(sized, 1), select(no_root, like(sized, nan), sized));
}

Val tanh(Val x) {
  // t = expm1(2 |x|), and tanh |x| = t / (t + 2).
  const Val twice = min(like(x, 20.0), absolute(x) * 2);
  const Whole n(twice * 1.44269504);
  const Val r = fma(n.value, like(x, -0.693147182), twice);
  const Val p = fma(r * r, polynomial(r, {0.49999997, 0.166665465, 0.0416674428, 0.00836625323, 0.00138699578}), r);
  const Val power = n.power(), t = fma(power, p, power - 1);
  return copy_sign(t / (t + 2), x);
}

Val sigmoid(Isa isa, Val x) {
  const Val e = exp_below(isa, -absolute(x));
  return select(x < 0, e, like(x, 1.0)) / (e + 1);
}

Val erf(Isa isa, Val x) {
  const Val t = absolute(x);
  const Val small = fma(
      polynomial(x * x, {0.128379151, -0.376124889, 0.11281731, -0.0267629661, 0.00498735206, -0.000595957856}), x, x);
  // log2(erfc t) is smooth; at 3.95 erfc is below half an ulp of 1.
  const Val log2_erfc = polynomial(min(like(x, 3.95), t), {-0.000282304944, -1.62689197, -0.919259846, -0.149941385,
                                                           0.0320665389, -0.00439039664, 0.000282673223});
  const Val large = copy_sign(1 - exp2_softmax(isa, log2_erfc, Degree::f32), x);
  return select(t > 0.925, large, small);
}

Val sqrt(Val x) { return x.code().intrinsic(llvm::Intrinsic::sqrt, {x.type()}, {x}); }
Val rsqrt(Val x) { return 1 / sqrt(x); }

Val absolute(Val x) {
  if (x.is_float()) return x.code().intrinsic(llvm::Intrinsic::fabs, {x.type()}, {x});
  return x.code().intrinsic(llvm::Intrinsic::abs, {x.type()}, {x, x.code().boolean(false)});
}

Val copy_sign(Val size, Val sign) {
  return size.code().intrinsic(llvm::Intrinsic::copysign, {size.type()}, {size, sign});
}

// Written out for portable, for which LLVM would call libm.
Val trunc(Isa isa, Val x) {
  if (isa != Isa::portable) return x.code().intrinsic(llvm::Intrinsic::trunc, {x.type()}, {x});
  // From 2^23 on every f32 is whole, and the result of to_int is unused.
  return select(absolute(x) < 0x1p23, copy_sign(to_float(to_int(x)), x), x);
}

Val floor(Isa isa, Val x) {
  if (isa != Isa::portable) return floor(x);
  const Val whole = trunc(isa, x);
  return select(whole > x, whole - 1, whole);
}

Val ceil(Isa isa, Val x) {
  if (isa != Isa::portable) return x.code().intrinsic(llvm::Intrinsic::ceil, {x.type()}, {x});
  const Val whole = trunc(isa, x);
  return select(whole < x, whole + 1, whole);
}

// Adds the largest f32 below 1/2: adding 1/2 itself would round that number to 1.
Val round(Isa isa, Val x) { return trunc(isa, x + copy_sign(like(x, 0x1.fffffep-2), x)); }

Val to_int_saturating(Val x) {
  const Val low = to_int(select(x > -0x1p31, x, like(x, -0x1p31)));
  const Val ordinary = select(x < 0x1p31, low, like(low, std::numeric_limits<std::int32_t>::max()));
  return select(is_nan(x), like(low, 0), ordinary);
}

namespace {

// ---- sin, cos and tan of every f32, in f64 --------------------------------------------------------------------------

// The fraction bits of 2/pi, after three bytes of zeros for the places before the point.
constexpr std::array<std::uint8_t, 27> two_over_pi{0,    0,    0,    0xa2, 0xf9, 0x83, 0x6e, 0x4e, 0x44,
                                                   0x15, 0x29, 0xfc, 0x27, 0x57, 0xd1, 0xf5, 0x34, 0xdd,
                                                   0xc0, 0xdb, 0x62, 0x95, 0x99, 0x3c, 0x43, 0x90, 0x41};

/// Word i: the 32 bits of 2/pi whose last has the weight 2^-8(i + 1).
std::array<std::uint32_t, 24> words() {
  std::array<std::uint32_t, 24> all{};
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t byte = 0; byte < 4; ++byte) all[i] = all[i] << 8 | two_over_pi[i + byte];
  return all;
}

Val table(Code& code) {
  llvm::Module& module = *code.function()->getParent();
  auto* variable = module.getGlobalVariable("two_over_pi", true);
  if (!variable) {
    std::array<std::uint32_t, 24> all = words();
    auto* content = llvm::ConstantDataArray::get(module.getContext(), all);
    variable = new llvm::GlobalVariable(module, content->getType(), true, llvm::GlobalValue::PrivateLinkage, content,
                                        "two_over_pi");
  }
  return {code, variable};
}

Val look_up(Val table, Val index) {
  Code& code = table.code();
  const Val at = code.at(table, code.i32(), index);
  return to_u64(index.is_vector() ? code.gather(code.i32(), at) : code.load(code.i32(), at));
}

struct Angle {
  Val rest, quarters;  ///< f64, i32: |x| = rest + quarters * pi / 2, quarters modulo 4
};

/// Payne and Hanek's reduction, for 2 <= |x| < inf: the product with 2/pi modulo 4 in fixed point, 62 bits after the
/// point. The omitted part is below 2^-60, and no f32 is closer than 2^-30 to a multiple of pi/2 [relative error
/// 2^-30].
Angle reduce_huge(Val magnitude) {
  Code& code = magnitude.code();
  const Val bits = as_int(magnitude), from = shift_right_logical(bits, 26) & 15;
  // |x| = mantissa * 2^(8 from - 22).
  const Val mantissa = to_u64(((bits & 0x7fffff) | 0x800000) << (shift_right_logical(bits, 23) & 7));
  const Val words = table(code);
  const Val product = (mantissa * look_up(words, from) << 32) + mantissa * look_up(words, from + 4) +
                      shift_right_logical(mantissa * look_up(words, from + 8), 32);
  const Val quarters = shift_right_logical(product + like(product, 0x1p61), 62);
  return {to_wide(product - (quarters << 62)) * 3.4061215800865545e-19, to_i32(quarters)};
}

Angle reduce(Val magnitude) {
  const Val x = widen(magnitude);
  const WideWhole n(x * 0.63661977236758134);
  // pi/2 in two parts; the first has 33 bits, so that up to n = 2^20 its product is exact even without FMA.
  const Val rest = fma(n.value, like(x, -6.077100506506192e-11), fma(n.value, like(x, -1.5707963267341256), x));
  const Val huge = (magnitude >= 0x1p20) & (magnitude < std::numeric_limits<double>::infinity());
  const auto both = x.code().branch(
      huge.is_vector() ? any(huge) : huge,
      [&] {
        const Angle far = reduce_huge(magnitude);
        return Code::Carried{select(huge, far.rest, rest), select(huge, far.quarters, n.low())};
      },
      [&] {
        return Code::Carried{rest, n.low()};
      });
  return {both[0], both[1]};
}

// sin and cos for |r| <= pi/4, with errors 2^-37 and 2^-43.
Val sin_rest(Val r) {
  const Val z = r * r;
  return fma(
      r * z,
      polynomial(z, {-0.16666666641606984, 0.0083333293835812141, -0.00019839334082741915, 2.7183042265123403e-06}), r);
}
Val cos_rest(Val r) {
  return polynomial(r * r, {1, -0.49999999999488803, 0.041666666553326598, -0.0013888880654014998,
                            2.4798959595944276e-05, -2.7174707863220964e-07});
}

Val is_odd(Val quarters) { return (quarters & 1) != 0; }

/// sin(rest + quarters * pi/2).
Val sine(const Angle& a, Val quarters) {
  const Val size = select(is_odd(quarters), cos_rest(a.rest), sin_rest(a.rest));
  return narrow(select((quarters & 2) != 0, -size, size));
}

Val flipped_by(Val sign, Val x) { return select(as_int(sign) < 0, -x, x); }

}  // namespace

Val sin(Val x) {
  const Angle a = reduce(absolute(x));
  return flipped_by(x, sine(a, a.quarters));
}

Val cos(Val x) {
  const Angle a = reduce(absolute(x));
  return sine(a, a.quarters + 1);
}

Val tan(Val x) {
  const Angle a = reduce(absolute(x));
  const Val s = sin_rest(a.rest), c = cos_rest(a.rest), odd = is_odd(a.quarters);
  return flipped_by(x, narrow(select(odd, -c, s) / select(odd, s, c)));
}

}  // namespace attune::codegen
