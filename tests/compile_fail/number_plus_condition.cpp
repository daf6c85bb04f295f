// tests/compile_fail/number_plus_condition.cpp — + between a number and a condition
// expect: attune: + takes numbers: convert a Bool with f32(b) or i32(b)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At at) { return s + (at.q == at.kv); };
#else
const Score score = [](Float s, At at) { return s + f32(at.q == at.kv); };
#endif
