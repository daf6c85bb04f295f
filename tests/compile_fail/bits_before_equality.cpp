// tests/compile_fail/bits_before_equality.cpp — == binds tighter than &
// expect: attune: == binds tighter than &: write (i & 1) == 0
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Mask odd = [](At at) { return (at.q ^ at.kv) & 1 == 0; };
#else
const Mask odd = [](At at) { return ((at.q ^ at.kv) & 1) == 0; };
#endif
