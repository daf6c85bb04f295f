// codegen/llvm/int.h — the language's i32 divisions: nothing traps, anything by 0 is 0
#pragma once

#include "codegen/llvm/vec.h"

namespace attune::codegen {

/// Truncates; INT_MIN by -1 wraps.
Val quotient(Val x, Val y);
Val remainder(Val x, Val y);
/// These round down.
Val floor_quotient(Val x, Val y);
Val floor_remainder(Val x, Val y);

}  // namespace attune::codegen
