// tests/compile_fail/float_index.cpp — a Float as an index
// expect: attune: an index is an Int: convert it with i32(x)
#include <attune/attune.h>

using namespace attune;

Score by_value(Capture<float> table) {
#ifdef FAIL
  return [=](Float s, At) { return s + table[s]; };
#else
  return [=](Float s, At) { return s + table[i32(s)]; };
#endif
}
