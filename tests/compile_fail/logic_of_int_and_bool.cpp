// tests/compile_fail/logic_of_int_and_bool.cpp — && between a number and a condition
// expect: attune: && joins Bools: compare a number first, e.g. i != 0
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Mask mask = [](At at) { return at.q % 2 && at.q >= at.kv; };
#else
const Mask mask = [](At at) { return at.q % 2 != 0 && at.q >= at.kv; };
#endif
