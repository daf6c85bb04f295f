// tests/compile_fail/float_power.cpp — ^ on Floats is no power
// expect: attune: ^ takes Ints: for a power write pow(x, y)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At) { return s ^ 2.0f; };
#else
const Score score = [](Float s, At) { return pow(s, 2.0f); };
#endif
