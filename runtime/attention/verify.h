// runtime/attention/verify.h — ATTUNE_VERIFY for calls of any device: their tensors come to the host first
#pragma once

#include "runtime/engines/oracle/verify.h"

namespace attune::runtime {

/// `stream`: of a call on a device; it is waited for.
void verify(const Call& call, const Verified& which, void* stream);

}  // namespace attune::runtime
