// runtime/attention/range.h — refuses forwards that need what is not there: pages, and elements outside of captured
// tensors
#pragma once

#include "runtime/attention/bind.h"

namespace attune::runtime {

/// Always refuses a call on the host that needs a page that does not exist. With ATTUNE_CHECK=range also a call on the
/// host that reads outside of captured tensors, and a call on a device that needs such a page: it waits for `stream`.
void refuse_outside(const Checked& checked, void* stream);

}  // namespace attune::runtime
