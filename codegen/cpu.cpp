// codegen/cpu.cpp — the register blocking of products for each instruction set
#include "codegen/cpu.h"

namespace attune::codegen {

// 16 accumulators of 512 bits keep two FMA ports of latency 4 busy twice over, and leave registers to spare; with 14x32
// LLVM spills. 6x16 takes 15 of AVX2's 16 registers. Measured 2026-10 on Zen 4; 8x32 and 14x32 are equally fast.
Tiling tiling(Isa isa, Unit unit) {
  switch (isa) {
    case Isa::portable: return {4, 4, 8, 1};
    case Isa::avx2: return {8, 6, 16, 1};
    case Isa::avx512:
    case Isa::avx512bf16: break;
    case Isa::amx:
      if (unit == Unit::bf16) return {16, 32, 32, 16};
  }
  return {16, 8, 32, 1};
}

}  // namespace attune::codegen
