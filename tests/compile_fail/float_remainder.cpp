// tests/compile_fail/float_remainder.cpp — % on Floats
// expect: attune: % takes Ints: for Floats write x - y * floor(x / y)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At) { return s % 2.0f; };
#else
const Score score = [](Float s, At) { return s - 2.0f * floor(s / 2.0f); };
#endif
