// codegen/llvm/trig.cpp — sin, cos and tan of every f32, in f64
#include <array>
#include <limits>
#include <llvm/IR/Module.h>

#include "codegen/llvm/math.h"
#include "codegen/llvm/wide.h"

namespace attune::codegen {
namespace {

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
