// tests/compile_fail/logic_of_float.cpp — || between Floats
// expect: attune: || joins Bools: compare a number first, e.g. i != 0
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At at) { return where(s || at.q == at.kv, s, 0.0f); };
#else
const Score score = [](Float s, At at) { return where(s != 0.0f || at.q == at.kv, s, 0.0f); };
#endif
