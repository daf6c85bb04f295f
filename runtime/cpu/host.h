// runtime/cpu/host.h — the instruction sets of the machine we run on
#pragma once

#include "codegen/isa.h"

namespace attune::runtime::cpu {

/// The most that the processor has and the operating system lets us use. Asked once per process.
codegen::Isa best_isa();
bool supports(codegen::Isa isa);

}  // namespace attune::runtime::cpu
