// tests/codegen/kernels/forward_reversed_sm90.h — Hopper's forward with a key source that only tests have
#pragma once

#include "codegen/choose/choose.h"

namespace attune::tests {

/// The same choice of forward_sm90 as a kernel that takes keys from the last one to the first.
codegen::KernelChoice reversed(codegen::KernelChoice choice);

}  // namespace attune::tests
