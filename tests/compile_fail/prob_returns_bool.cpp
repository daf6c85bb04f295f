// tests/compile_fail/prob_returns_bool.cpp — a prob mod that returns a condition
// expect: attune: a prob mod returns Float, e.g. where(keep, p / rate, 0)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Prob prob = [](Float p, At) { return random(1) < p; };
#else
const Prob prob = [](Float p, At) { return where(random(1) < 0.5f, 2.0f * p, 0.0f); };
#endif
