// tests/compile_fail/mask_parameters.cpp — a mask that wants the score
// expect: attune: a mask is called with (At at)
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Mask mask = [](Float s, At at) { return s > 0.0f && at.q >= at.kv; };
#else
const Mask mask = [](At at) { return at.q >= at.kv; };
#endif
