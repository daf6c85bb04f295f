// tests/compile_fail/missing_capture.cpp — a lambda that forgets to capture its tensor
// expect: an error within it, e.g. a name that is not captured, is told above
#include <attune/attune.h>

using namespace attune;

Score biased(const Array<float>& slope) {
#ifdef FAIL
  return [](Float s, At at) { return s + slope[at.head]; };
#else
  return [=](Float s, At at) { return s + slope[at.head]; };
#endif
}
