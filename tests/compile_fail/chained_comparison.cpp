// tests/compile_fail/chained_comparison.cpp — comparisons do not chain
// expect: attune: a comparison cannot be chained: write a <= b && b <= c
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Mask mask = [](At at) { return 0 <= at.kv <= at.q; };
#else
const Mask mask = [](At at) { return 0 <= at.kv && at.kv <= at.q; };
#endif
