// tests/compile_fail/float_remainder_by_int.cpp — % on a Float by a whole number
// expect: attune: % takes Ints: for Floats write x - y * floor(x / y)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At) { return s % 2; };
#else
const Score score = [](Float s, At at) { return s + at.q % 2; };
#endif
