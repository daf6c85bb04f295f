// runtime/cpu/peak.h — the multiply-adds one core can do, measured
#pragma once

#include <attune/tensor.h>

namespace attune::runtime::cpu {

/// GFLOP/s of one thread with the multiply-adds that products of this type use; takes about two milliseconds.
double peak_gflops(DType type);

}  // namespace attune::runtime::cpu
