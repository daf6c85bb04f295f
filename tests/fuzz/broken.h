// tests/fuzz/broken.h — how a libFuzzer target says which rule a text breaks
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace attune::tests {

[[noreturn]] inline void broken(const char* rule, const std::string& text) {
  std::fprintf(stderr, "%s:\n%s\n", rule, text.c_str());
  std::abort();
}

}  // namespace attune::tests
