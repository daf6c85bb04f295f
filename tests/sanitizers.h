// tests/sanitizers.h — which sanitizers this build has: some tests cannot run under them, and all are slow
#pragma once

#include <cstddef>

#include "tests/turn.h"

// gcc has a macro for each, clang a feature test.
#ifndef __has_feature
#define __has_feature(x) 0
#endif

namespace attune::tests {

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
inline constexpr bool under_tsan = true;
#else
inline constexpr bool under_tsan = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
inline constexpr bool under_asan = true;
#else
inline constexpr bool under_asan = false;
#endif

/// Everything takes about five times as long, so a sanitized build runs fewer of many similar cases.
inline constexpr bool sanitized = under_tsan || under_asan;

/// Whether this run takes case `number` of many similar ones: a sanitized build takes one in `step`, also where all
/// turns are asked for, and others every second one. Where cases are of several loops, a step that divides no loop's
/// count takes each of them with each value.
inline bool runs_case(std::size_t number, std::size_t step) {
  return sanitized ? number % step == turn().value_or(0) % step : in_turn(number, 2);
}

}  // namespace attune::tests
