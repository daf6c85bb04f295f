// tests/compile_fail/where_of_two_types.cpp — where between a number and a condition
// expect: attune: the two values of where(...) have one type
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At at) { return where(at.q > at.kv, s, at.q == at.kv); };
#else
const Score score = [](Float s, At at) { return where(at.q > at.kv, s, f32(at.q == at.kv)); };
#endif
