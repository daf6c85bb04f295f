// runtime/attention/verify.h — ATTUNE_VERIFY for calls on any device: their tensors are copied to the host first
#pragma once

#include "runtime/engines/oracle/verify.h"

namespace attune::runtime {

/// `stream`: the stream of a call on a device; verify waits for it.
void verify(const Call& call, const Verified& which, void* stream);

}  // namespace attune::runtime
