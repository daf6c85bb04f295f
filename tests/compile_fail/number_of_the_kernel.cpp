// tests/compile_fail/number_of_the_kernel.cpp — a value of the kernel as a number of C++: static_cast
// expect: attune: a value of the kernel is no C++ number or condition
#include <attune/attune.h>

using namespace attune;

const Score score = [](Float s, At at) {
#ifdef FAIL
  const int row = static_cast<int>(at.q);
#else
  const Int row = at.q;
#endif
  return s + f32(row);
};
