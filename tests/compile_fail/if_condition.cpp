// tests/compile_fail/if_condition.cpp — a kernel's condition decides nothing in C++: if
// expect: attune: a value of the kernel is no C++ number or condition
#include <attune/attune.h>

using namespace attune;

const Score score = [](Float s, At at) {
#ifdef FAIL
  if (at.q > at.kv) return 2.0f * s;
  return s;
#else
  return where(at.q > at.kv, 2.0f * s, s);
#endif
};
