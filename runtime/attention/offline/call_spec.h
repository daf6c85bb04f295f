// runtime/attention/offline/call_spec.h — the spec that selects a call's kernels, for a GPU that need not be in this
// machine
#pragma once

#include "codegen/choose/call_choices.h"
#include "runtime/engines/call.h"

namespace attune::runtime {

/// The CallSpec of a call with these tensors on a GPU of compute capability arch / 10. Throws an Error if the tensors
/// do not agree. Reads the data of cu_seqlens, kv_len and q_offsets only, and only on the host; other tensors need no
/// memory.
codegen::CallSpec call_spec(const compiler::LoweredMod& lowered, const What& asked, int arch,
                            std::optional<bool> exact = {});

}  // namespace attune::runtime
