// tests/compile_fail/where_of_a_number.cpp — where on a number
// expect: attune: where(...) starts with a Bool: compare something, e.g. i != 0
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At at) { return where(at.q % 2, s, 0.0f); };
#else
const Score score = [](Float s, At at) { return where(at.q % 2 != 0, s, 0.0f); };
#endif
