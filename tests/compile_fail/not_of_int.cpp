// tests/compile_fail/not_of_int.cpp — ! of a number
// expect: attune: ! takes a Bool: for a number write i == 0
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Mask mask = [](At at) { return !(at.q % 2); };
#else
const Mask mask = [](At at) { return at.q % 2 == 0; };
#endif
