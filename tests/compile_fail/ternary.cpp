// tests/compile_fail/ternary.cpp — ?: on a condition of the kernel
// expect: attune: a value of the kernel is no C++ number or condition
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At at) { return at.q > at.kv ? s : 2.0f * s; };
#else
const Score score = [](Float s, At at) { return where(at.q > at.kv, s, 2.0f * s); };
#endif
