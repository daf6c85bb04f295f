// tests/compile_fail/sum_body_parameters.cpp — a sum's body that takes nothing
// expect: attune: the body of a sum is called with (Int i)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At) { return s + sum(4, [] { return Float(1.0f); }); };
#else
const Score score = [](Float s, At) { return s + sum(4, [](Int) { return Float(1.0f); }); };
#endif
