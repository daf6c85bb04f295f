// runtime/attention/offline/call_spec.h — what the kernels of a call are chosen by on a GPU that need not be here
#pragma once

#include "codegen/call_choices.h"
#include "runtime/engines/call.h"

namespace attune::runtime {

/// As a call with these tensors has it on a GPU of this compute capability, times ten. Throws the Error of tensors that
/// do not agree. Of all tensors it reads cu_seqlens, kv_len and q_offsets alone, where they are on the host; others
/// need no memory.
codegen::CallSpec call_spec(const compiler::LoweredMod& lowered, const What& asked, int arch,
                            std::optional<bool> exact = {});

}  // namespace attune::runtime
