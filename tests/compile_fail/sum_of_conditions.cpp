// tests/compile_fail/sum_of_conditions.cpp — a sum of conditions
// expect: attune: the body of a sum returns Float or Int
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At at) { return s + sum(4, [=](Int i) { return at.q % 4 == i; }); };
#else
const Score score = [](Float s, At at) { return s + sum(4, [=](Int i) { return i32(at.q % 4 == i); }); };
#endif
