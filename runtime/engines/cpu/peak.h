// runtime/engines/cpu/peak.h — measures the multiply-adds that one core can do
#pragma once

#include <attune/tensor.h>

namespace attune::runtime::cpu {

/// GFLOP/s of one thread, with the multiply-adds that products of this type use. Takes about two milliseconds.
double peak_gflops(DType type);

}  // namespace attune::runtime::cpu
