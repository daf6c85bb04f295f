// runtime/machine/tensor.cpp — narrow floats, and single elements read and written on the host
#include "runtime/machine/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace attune {
namespace {

/// A binary format of 16 bits: sign, exponent, fraction.
struct Format {
  int fraction;      ///< bits
  int min_exponent;  ///< of the smallest normal number
  std::uint16_t infinity;
};
constexpr Format half{10, -14, 0x7c00}, brain{7, -126, 0x7f80};

/// The nearest number of the format, ties to even. Straight from a double: rounding twice would round wrongly.
std::uint16_t encode(double value, const Format& format) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    const auto payload = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(value) >> (52 - format.fraction)) &
                         ((1u << format.fraction) - 1);
    return static_cast<std::uint16_t>(sign | format.infinity | payload | 1u << (format.fraction - 1));
  }
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | format.infinity);
  if (value == 0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  // In units of the last place: below 2^fraction for a subnormal, and a carry out of the top moves the exponent on.
  const double units = std::nearbyint(std::scalbn(std::fabs(value), format.fraction - exponent));
  const auto bits = (static_cast<std::uint32_t>(exponent - format.min_exponent) << format.fraction) +
                    static_cast<std::uint32_t>(units);
  return static_cast<std::uint16_t>(sign | std::min<std::uint32_t>(bits, format.infinity));
}

float decode_half(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0) return std::copysign(std::scalbn(static_cast<float>(fraction), -24), sign ? -1.0f : 1.0f);
  return std::bit_cast<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

// An e4m3: a sign, 4 bits of exponent, 3 of fraction. With the greatest exponent, every fraction but NaN's is a number.
constexpr std::uint8_t e4m3_nan = 0x7f, e4m3_greatest = 0x7e;
constexpr int e4m3_fraction = 3, e4m3_min_exponent = -6;

std::uint8_t encode_e4m3(double value) {
  const unsigned sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | e4m3_nan);
  if (value == 0) return static_cast<std::uint8_t>(sign);
  const double magnitude = std::min(std::fabs(value), 448.0);
  const int exponent = std::max(std::ilogb(magnitude), e4m3_min_exponent);
  // As encode() does it.
  const double units = std::nearbyint(std::scalbn(magnitude, e4m3_fraction - exponent));
  const unsigned bits = (static_cast<unsigned>(exponent - e4m3_min_exponent) << e4m3_fraction) +
                        static_cast<unsigned>(units);
  return static_cast<std::uint8_t>(sign | std::min<unsigned>(bits, e4m3_greatest));
}

float decode_e4m3(std::uint8_t bits) {
  const unsigned magnitude = bits & 0x7fu, exponent = magnitude >> e4m3_fraction, fraction = magnitude & 7;
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if (magnitude == e4m3_nan) return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
  if (exponent == 0) return sign * std::scalbn(static_cast<float>(fraction), e4m3_min_exponent - e4m3_fraction);
  return sign * std::scalbn(static_cast<float>(8 + fraction), static_cast<int>(exponent) - 10);
}

template <class T>
T peek(const Tensor& tensor, std::int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(tensor.data) + offset * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void poke(const Tensor& tensor, std::int64_t offset, T value) {
  std::memcpy(static_cast<char*>(tensor.data) + offset * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

f16::f16(float value) : bits(encode(value, half)) {}
f16::operator float() const { return decode_half(bits); }
bf16::bf16(float value) : bits(encode(value, brain)) {}
bf16::operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
e4m3::e4m3(float value) : bits(encode_e4m3(value)) {}
e4m3::operator float() const { return decode_e4m3(bits); }

namespace runtime {

double load(const Tensor& tensor, std::int64_t offset) {
  switch (tensor.dtype) {
    case DType::f32: return peek<float>(tensor, offset);
    case DType::f16: return peek<f16>(tensor, offset);
    case DType::bf16: return peek<bf16>(tensor, offset);
    case DType::f64: return peek<double>(tensor, offset);
    case DType::i64: return static_cast<std::int32_t>(peek<std::int64_t>(tensor, offset));
    case DType::i32: return peek<std::int32_t>(tensor, offset);
    case DType::i16: return peek<std::int16_t>(tensor, offset);
    case DType::i8: return peek<std::int8_t>(tensor, offset);
    case DType::u8: return peek<std::uint8_t>(tensor, offset);
    case DType::boolean: return peek<std::uint8_t>(tensor, offset) != 0;
    case DType::e4m3: return decode_e4m3(peek<std::uint8_t>(tensor, offset));
  }
  return 0;
}

void store(const Tensor& tensor, std::int64_t offset, double value) {
  switch (tensor.dtype) {
    case DType::f32: return poke(tensor, offset, static_cast<float>(value));
    case DType::f16: return poke(tensor, offset, encode(value, half));
    case DType::bf16: return poke(tensor, offset, encode(value, brain));
    case DType::f64: return poke(tensor, offset, value);
    case DType::i64: return poke(tensor, offset, static_cast<std::int64_t>(value));
    case DType::i32: return poke(tensor, offset, static_cast<std::int32_t>(value));
    case DType::i16: return poke(tensor, offset, static_cast<std::int16_t>(value));
    case DType::i8: return poke(tensor, offset, static_cast<std::int8_t>(value));
    case DType::u8: return poke(tensor, offset, static_cast<std::uint8_t>(value));
    case DType::boolean: return poke(tensor, offset, static_cast<std::uint8_t>(value != 0));
    case DType::e4m3: return poke(tensor, offset, encode_e4m3(value));
  }
}

}  // namespace runtime
}  // namespace attune
