// codegen/llvm/philox.h — the language's random numbers (ir/eval.h) as vector code
#pragma once

#include "codegen/llvm/vec.h"

namespace attune::codegen {

struct Coordinates {
  Val kv, q, head, batch;
};
/// ir::random for each lane. A vector kv holds consecutive positions, 4 n of them; if the first is a multiple of 4,
/// they cost a quarter.
Val random(Val seed, const Coordinates& at);
/// ir::kept for each lane. If the first position is a multiple of the number of lanes, up to 16 lanes cost one block.
Val kept(Val seed, Val n, const Coordinates& at);

}  // namespace attune::codegen
