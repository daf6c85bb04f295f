// playground/wasm/gaps.h — the parts of C++20 that Debian's emscripten lacks, included before each file of that build
#pragma once

#include <version>

// libc++ 13 has C++20's concepts, but no algorithms on ranges, no std::bit_cast, and no floating-point from_chars and
// to_chars. A newer libc++ has them all, and this file then adds nothing.
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 15000

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <string>

namespace std {

template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

namespace ranges {

template <class R, class Is, class P = identity>
constexpr auto find_if(R&& range, Is is, P part = {}) {
  auto at = std::begin(range);
  while (at != std::end(range) && !std::invoke(is, std::invoke(part, *at))) ++at;
  return at;
}
template <class R, class T, class P = identity>
constexpr auto find(R&& range, const T& value, P part = {}) {
  return ranges::find_if(
      range, [&](const auto& one) { return one == value; }, part);
}
template <class R, class Is, class P = identity>
constexpr bool any_of(R&& range, Is is, P part = {}) {
  return ranges::find_if(range, is, part) != std::end(range);
}
template <class R, class Is, class P = identity>
constexpr bool none_of(R&& range, Is is, P part = {}) {
  return !ranges::any_of(range, is, part);
}
template <class R, class Is, class P = identity>
constexpr bool all_of(R&& range, Is is, P part = {}) {
  return ranges::none_of(
      range, [&](const auto& one) { return !std::invoke(is, one); }, part);
}
template <class R, class Is, class P = identity>
constexpr auto count_if(R&& range, Is is, P part = {}) {
  return std::count_if(std::begin(range), std::end(range),
                       [&](const auto& one) { return std::invoke(is, std::invoke(part, one)); });
}
template <class R, class T, class P = identity>
constexpr auto count(R&& range, const T& value, P part = {}) {
  return ranges::count_if(
      range, [&](const auto& one) { return one == value; }, part);
}

/// Compares projections of two elements.
template <class Less, class P>
constexpr auto by(Less less, P part) {
  return [=](const auto& a, const auto& b) { return std::invoke(less, std::invoke(part, a), std::invoke(part, b)); };
}
template <class R, class Less = less, class P = identity>
constexpr bool is_sorted(R&& range, Less less = {}, P part = {}) {
  return std::is_sorted(std::begin(range), std::end(range), by(less, part));
}
template <class R, class Less = less, class P = identity>
constexpr void sort(R&& range, Less less = {}, P part = {}) {
  std::sort(std::begin(range), std::end(range), by(less, part));
}
template <class R, class T, class Less = less, class P = identity>
constexpr auto lower_bound(R&& range, const T& value, Less less = {}, P part = {}) {
  return std::lower_bound(std::begin(range), std::end(range), value, [&](const auto& one, const T& sought) {
    return std::invoke(less, std::invoke(part, one), sought);
  });
}
template <class R, class Less = less, class P = identity>
constexpr auto min_element(R&& range, Less less = {}, P part = {}) {
  return std::min_element(std::begin(range), std::end(range), by(less, part));
}
template <class R, class Less = less, class P = identity>
constexpr auto max_element(R&& range, Less less = {}, P part = {}) {
  return std::max_element(std::begin(range), std::end(range), by(less, part));
}
template <class R, class Less = less, class P = identity>
constexpr auto min(R&& range, Less less = {}, P part = {}) {
  return *ranges::min_element(range, less, part);
}
template <class R, class Less = less, class P = identity>
constexpr auto max(R&& range, Less less = {}, P part = {}) {
  return *ranges::max_element(range, less, part);
}
template <class It>
struct MinMax {
  It min, max;
};
template <class R>
constexpr auto minmax_element(R&& range) {
  const auto [least, most] = std::minmax_element(std::begin(range), std::end(range));
  return MinMax<decltype(std::begin(range))>{least, most};
}
template <class R, class Is, class T>
constexpr void replace_if(R&& range, Is is, const T& by) {
  std::replace_if(std::begin(range), std::end(range), is, by);
}
template <class R, class Out, class F>
constexpr void transform(R&& range, Out out, F of) {
  std::transform(std::begin(range), std::end(range), out, of);
}
template <class R, class Out>
constexpr void copy(R&& range, Out out) {
  std::copy(std::begin(range), std::end(range), out);
}

}  // namespace ranges

/// Decimal numbers only; attune needs no others.
template <class Real>
requires is_floating_point_v<Real> from_chars_result from_chars(const char* begin, const char* end, Real& into) {
  const auto digits = [&](const char* at) {
    while (at != end && *at >= '0' && *at <= '9') ++at;
    return at;
  };
  const char* const first = begin != end && *begin == '-' ? begin + 1 : begin;
  const char* stop = digits(first);
  const bool whole = stop != first;
  if (stop != end && *stop == '.') {
    const char* const fraction = digits(stop + 1);
    if (whole || fraction != stop + 1) stop = fraction;
  }
  if (stop == first) return {begin, errc::invalid_argument};
  if (stop != end && (*stop == 'e' || *stop == 'E')) {
    const char* const power = stop + 1 != end && (stop[1] == '-' || stop[1] == '+') ? stop + 2 : stop + 1;
    if (digits(power) != power) stop = digits(power);
  }
  const string text(begin, stop);
  Real value = 0;
  if constexpr (sizeof(Real) == sizeof(float))
    value = strtof(text.c_str(), nullptr);
  else
    value = strtod(text.c_str(), nullptr);
  const bool nothing = text.find_first_of("123456789") > text.find_first_of("eE");
  if (isinf(value) || (value == 0 && !nothing && text.find_first_of("123456789") != string::npos))
    return {stop, errc::result_out_of_range};
  into = value;
  return {stop, errc{}};
}

/// The fewest digits that read back as the same number, with an exponent where that is shorter.
template <class Real>
requires is_floating_point_v<Real> to_chars_result to_chars(char* begin, char* end, Real value) {
  const auto same = [&](const string& text) {
    Real back = 0;
    return from_chars(text.data(), text.data() + text.size(), back).ec == errc{} && back == value;
  };
  const auto printed = [&](const char* format, int digits) {
    char text[400];
    snprintf(text, sizeof text, format, digits, static_cast<double>(value));
    return string(text);
  };
  int digits = 0;
  while (digits < 17 && !same(printed("%.*e", digits))) ++digits;
  const string scientific = printed("%.*e", digits);
  const int power = atoi(scientific.c_str() + scientific.find('e') + 1);
  const string fixed = printed("%.*f", max(0, digits - power));
  const string& best = fixed.size() <= scientific.size() ? fixed : scientific;
  if (end - begin < static_cast<ptrdiff_t>(best.size())) return {end, errc::value_too_large};
  return {std::copy(best.begin(), best.end(), begin), errc{}};
}

}  // namespace std

#endif
