// tests/compile_fail/mask_returns_int.cpp — a mask that returns a number
// expect: attune: a mask returns Bool: compare something, e.g. at.q >= at.kv
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Mask mask = [](At at) { return at.q - at.kv; };
#else
const Mask mask = [](At at) { return at.q - at.kv >= 0; };
#endif
