// codegen/llvm/philox.h — the language's random numbers (ir/random.h) as vector code
#pragma once

#include "codegen/llvm/vec.h"

namespace attune::codegen {

struct Coordinates {
  Val kv, q, head, batch;
};
/// ir::random for each lane. A vector kv holds consecutive positions from a multiple of 4 on, a multiple of 4 of them.
Val random(Val seed, const Coordinates& at);

}  // namespace attune::codegen
