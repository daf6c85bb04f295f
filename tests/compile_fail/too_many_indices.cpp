// tests/compile_fail/too_many_indices.cpp — five indices
// expect: attune: a captured tensor has at most four dimensions
#include <attune/attune.h>

using namespace attune;

Score by_all(Capture<float> table) {
#ifdef FAIL
  return [=](Float s, At at) { return s + table(at.batch, at.head, at.q, at.kv, at.q_len); };
#else
  return [=](Float s, At at) { return s + table(at.batch, at.head, at.q, at.kv); };
#endif
}
