// tests/runtime/machine/tensor.test.cpp — 16-bit floats against exact arithmetic; elements
#include "runtime/machine/tensor.h"

#include <bit>
#include <cmath>
#include <limits>

#include "tests/catch.h"

using namespace attune;

namespace {

template <class T>
T from_bits(std::uint32_t bits) {
  T out;
  out.bits = static_cast<std::uint16_t>(bits);
  return out;
}

/// Every finite number of the format, from 0 upwards, has the next bits; a value halfway between two rounds to the even
/// one.
template <class T>
void rounds_to_nearest_even(std::uint32_t infinity) {
  for (std::uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const double low = float(from_bits<T>(bits)), high = float(from_bits<T>(bits + 1));
    const double middle = (low + high) / 2;  // exact: both have few bits
    const std::uint32_t even = bits % 2 ? bits + 1 : bits;
    std::uint16_t memory = 0;
    const Tensor t(&memory, std::is_same_v<T, f16> ? DType::f16 : DType::bf16, {});
    const auto stored = [&](double x) {
      runtime::store(t, 0, x);
      return std::uint32_t{memory};
    };
    const bool right = stored(middle) == even && stored(-middle) == (even | 0x8000) &&
                       stored(std::nextafter(middle, 0.0)) == bits &&
                       stored(std::nextafter(middle, INFINITY)) == bits + 1;
    if (!right) FAIL("wrong around " << low << ", bits " << bits);
  }
}

template <class T>
void survives_float() {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const T value = from_bits<T>(bits);
    const float wide = value;
    const T back(wide);
    if (std::isnan(wide)) {
      if (!std::isnan(float(back)) || (back.bits & 0x8000) != (bits & 0x8000)) FAIL("NaN lost, bits " << bits);
    } else if (back.bits != bits) {
      FAIL("bits " << bits << " came back as " << back.bits);
    }
  }
}

}  // namespace

TEST_CASE("every f16 and bf16 survives the way through float", "[tensor]") {
  survives_float<f16>();
  survives_float<bf16>();
}

TEST_CASE("16-bit floats have the values their bits say", "[tensor]") {
  CHECK(float(from_bits<f16>(0x3c00)) == 1);
  CHECK(float(from_bits<f16>(0xc000)) == -2);
  CHECK(float(from_bits<f16>(0x0001)) == std::ldexp(1.0f, -24));
  CHECK(float(from_bits<f16>(0x03ff)) == 1023 * std::ldexp(1.0f, -24));
  CHECK(float(from_bits<f16>(0x0400)) == std::ldexp(1.0f, -14));
  CHECK(float(from_bits<f16>(0x7bff)) == 65504);
  CHECK(float(from_bits<f16>(0x7c00)) == std::numeric_limits<float>::infinity());
  CHECK(float(from_bits<bf16>(0x3f80)) == 1);
  CHECK(float(from_bits<bf16>(0x0001)) == std::ldexp(1.0f, -133));
  CHECK(float(from_bits<bf16>(0x7f7f)) == 255 * std::ldexp(1.0f, 120));
}

TEST_CASE("doubles round to 16 bits once, to nearest even", "[tensor]") {
  rounds_to_nearest_even<f16>(0x7c00);
  rounds_to_nearest_even<bf16>(0x7f80);
}

TEST_CASE("every e4m3 survives the way through float", "[tensor]") {
  for (unsigned bits = 0; bits < 256; ++bits) {
    e4m3 value;
    value.bits = static_cast<std::uint8_t>(bits);
    const float wide = value;
    INFO("bits " << bits << ", " << wide);
    CHECK(std::isnan(wide) == ((bits & 0x7f) == 0x7f));
    CHECK(unsigned{e4m3(wide).bits} == bits);
  }
}

TEST_CASE("an e4m3 has the value its bits say, and numbers round to the nearest even one", "[tensor]") {
  const auto value = [](unsigned bits) {
    e4m3 out;
    out.bits = static_cast<std::uint8_t>(bits);
    return double{float(out)};
  };
  CHECK(value(0x38) == 1);
  CHECK(value(0xc0) == -2);
  CHECK(value(0x01) == 0x1p-9);
  CHECK(value(0x07) == 7 * 0x1p-9);
  CHECK(value(0x08) == 0x1p-6);
  CHECK(value(0x7e) == 448);
  std::uint8_t memory = 0;
  const Tensor t(&memory, DType::e4m3, {});
  const auto stored = [&](double x) {
    runtime::store(t, 0, x);
    return unsigned{memory};
  };
  for (unsigned bits = 0; bits < 0x7e; ++bits) {
    const double middle = (value(bits) + value(bits + 1)) / 2;
    INFO("bits " << bits);
    CHECK(stored(middle) == bits + bits % 2);
    CHECK(stored(-middle) == ((bits + bits % 2) | 0x80));
    CHECK(stored(std::nextafter(middle, 0.0)) == bits);
    CHECK(stored(std::nextafter(middle, 1e3)) == bits + 1);
  }
  // It has no infinity.
  for (const double large : {448.1, 465.0, 1e30, double{INFINITY}}) {
    CHECK(stored(large) == 0x7e);
    CHECK(stored(-large) == 0xfe);
  }
}

TEST_CASE("what is too large for 16 bits becomes infinite, from half a step on", "[tensor]") {
  CHECK(f16(65519.996f).bits == 0x7bff);
  CHECK(f16(65520.0f).bits == 0x7c00);
  CHECK(f16(-1e30f).bits == 0xfc00);
  CHECK(bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(bf16(-std::numeric_limits<float>::infinity()).bits == 0xff80);
}

TEST_CASE("what is too small for 16 bits becomes a zero of its sign", "[tensor]") {
  CHECK(f16(std::ldexp(1.0f, -25)).bits == 0);  // halfway to the smallest: rounds to even
  CHECK(f16(std::ldexp(1.001f, -25)).bits == 1);
  CHECK(f16(-std::ldexp(1.0f, -30)).bits == 0x8000);
  CHECK(bf16(-0.0f).bits == 0x8000);
}

TEST_CASE("elements of every type are read as the language sees them", "[tensor]") {
  const std::int64_t wide = (std::int64_t{1} << 32) - 5;
  const std::uint8_t yes = 7;
  const std::int8_t minus = -3;
  CHECK(runtime::load(Tensor(const_cast<std::int64_t*>(&wide), DType::i64, {}), 0) == -5);
  CHECK(runtime::load(Tensor(const_cast<std::uint8_t*>(&yes), DType::boolean, {}), 0) == 1);
  CHECK(runtime::load(Tensor(const_cast<std::uint8_t*>(&yes), DType::u8, {}), 0) == 7);
  CHECK(runtime::load(Tensor(const_cast<std::int8_t*>(&minus), DType::i8, {}), 0) == -3);
}
