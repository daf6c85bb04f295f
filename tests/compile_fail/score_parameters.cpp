// tests/compile_fail/score_parameters.cpp — a score that forgets where it sits
// expect: attune: a score is called with (Float s, At at)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s) { return 2.0f * s; };
#else
const Score score = [](Float s, At) { return 2.0f * s; };
#endif
