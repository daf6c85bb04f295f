// tests/compile_fail/sum_count.cpp — a sum over a count of the kernel
// expect: attune: the count of a sum is a C++ number, known when the kernel is made
#include <attune/attune.h>

using namespace attune;

#ifdef FAIL
const Score score = [](Float s, At at) { return s + sum(at.q, [](Int i) { return i; }); };
#else
const Score score = [](Float s, At at) { return s + sum(16, [=](Int i) { return where(i < at.q, i, 0); }); };
#endif
