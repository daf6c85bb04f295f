// tests/compile_fail/narrowing.cpp — a Float where an Int belongs
// expect: attune: write i32(x), it truncates
#include <attune/attune.h>

using namespace attune;

const Score score = [](Float s, At at) {
#ifdef FAIL
  const Int bucket = s * 4.0f;
#else
  const Int bucket = i32(s * 4.0f);
#endif
  return s + f32(bucket + at.q);
};
