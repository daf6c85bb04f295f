// runtime/engines/cpu/host.h — detects the instruction sets of this machine
#pragma once

#include "codegen/isa.h"

namespace attune::runtime::cpu {

/// The widest instruction set that the processor has and the operating system lets us use. Detected once per process.
codegen::Isa best_isa();
bool supports(codegen::Isa isa);

}  // namespace attune::runtime::cpu
