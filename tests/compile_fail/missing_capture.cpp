// tests/compile_fail/missing_capture.cpp — a lambda that forgets to capture its tensor
// expect: gcc: attune: a score is called with (Float s, At at); an error within it, e.g. a name that is not captured
// expect: clang: cannot be implicitly captured in a lambda
#include <attune/attune.h>

using namespace attune;

Score biased(const Array<float>& slope) {
#ifdef FAIL
  return [](Float s, At at) { return s + slope[at.head]; };
#else
  return [=](Float s, At at) { return s + slope[at.head]; };
#endif
}
