// tests/catch.h — Catch2 3 or 2, whichever is installed, so that a test reads the same on both
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
// Catch2 2 sizes a signal stack at compile time, which newer C libraries no longer allow.
#define CATCH_CONFIG_NO_POSIX_SIGNALS
#include <catch2/catch.hpp>
#endif
