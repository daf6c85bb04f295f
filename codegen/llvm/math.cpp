// codegen/llvm/math.cpp — the language's f32 functions on vectors and scalars, without calls
#include "codegen/llvm/math.h"

#include <array>
#include <limits>
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/llvm/wide.h"

namespace attune::codegen {
namespace {

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

}  // namespace attune::codegen
