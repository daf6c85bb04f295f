// codegen/llvm/philox.h — the language's random numbers (ir/random.h) as vector code
#pragma once

#include "codegen/llvm/vec.h"

namespace attune::codegen {

struct Coordinates {
  Val kv, q, head, batch;
};
/// ir::random for each lane. A vector kv holds consecutive positions, a multiple of 4 of them; from a multiple of 4 on
/// they cost a quarter.
Val random(Val seed, const Coordinates& at);
/// ir::kept for each lane. From a position on that is a multiple of the lanes, at most 16 lanes cost one block.
Val kept(Val seed, Val n, const Coordinates& at);

}  // namespace attune::codegen
