// tests/sanitizers.h — which sanitizers this build has: some cannot do all that a test does, and all are slow
#pragma once

// gcc has a macro for each, clang a feature.
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

/// All takes some five times as long: of many cases alike such a build takes some, and one without takes all.
inline constexpr bool sanitized = under_tsan || under_asan;

}  // namespace attune::tests
