// tests/compile_fail/bits_of_conditions_or.cpp — | between conditions
// expect: attune: | is for the bits of Ints: join conditions with ||
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Mask mask = [](At at) { return (at.q >= at.kv) | (at.kv < 4); };
#else
const Mask mask = [](At at) { return at.q >= at.kv || at.kv < 4; };
#endif
