// tests/sanitizers.h — which sanitizers this build has: some cannot run everything a test does, and all are slow
#pragma once

// gcc defines a macro for each, clang a feature.
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

/// Sanitized builds are about five times slower: of many similar cases they run a few, other builds run all.
inline constexpr bool sanitized = under_tsan || under_asan;

}  // namespace attune::tests
