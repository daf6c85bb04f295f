// tests/compile_fail/prob_parameters.cpp — a prob mod with its parameters the wrong way round
// expect: attune: a prob mod is called with (Float p, At at)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Prob prob = [](At, Float p) { return 2.0f * p; };
#else
const Prob prob = [](Float p, At) { return 2.0f * p; };
#endif
