// tests/compile_fail/score_returns_bool.cpp — a score that returns a condition
// expect: attune: a score returns Float, e.g. s + f32(at.kv - at.q); a condition belongs in where(...)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At) { return s > 0.0f; };
#else
const Score score = [](Float s, At) { return where(s > 0.0f, s, 0.0f); };
#endif
