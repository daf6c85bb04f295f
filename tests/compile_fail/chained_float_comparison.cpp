// tests/compile_fail/chained_float_comparison.cpp — comparisons of Floats do not chain
// expect: attune: a comparison cannot be chained: write a < b && b < c
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At) { return where(0.0f < s < 1.0f, s, 0.0f); };
#else
const Score score = [](Float s, At) { return where(0.0f < s && s < 1.0f, s, 0.0f); };
#endif
