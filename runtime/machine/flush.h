// runtime/machine/flush.h — flushes denormal numbers to 0 while kernels run
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace attune::runtime {

/// Far keys under a steep score have denormal probabilities, and each multiply-add of one costs Intel's processors a
/// few hundred cycles: ALiBi in f32 ran at a third of causal attention's speed. Ranges allow for the flush: see
/// ir/interval.h.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }  // flush results, denormals are zeros
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

/// Keeps them again, where numbers are stored and not computed with.
class KeepDenormals {
 public:
#if defined(__x86_64__)
  KeepDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~0x8040u); }
  ~KeepDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

}  // namespace attune::runtime
