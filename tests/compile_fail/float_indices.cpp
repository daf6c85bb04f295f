// tests/compile_fail/float_indices.cpp — a Float among several indices
// expect: attune: an index is an Int: convert it with i32(x)
#include <attune/attune.h>

using namespace attune;

Score by_value(Capture<float> table) {
#ifdef FAIL
  return [=](Float s, At at) { return s + table(at.head, s); };
#else
  return [=](Float s, At at) { return s + table(at.head, i32(s)); };
#endif
}
