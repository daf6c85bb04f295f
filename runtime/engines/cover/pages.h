// runtime/engines/cover/pages.h — refuses a call whose queries need keys of pages that do not exist
#pragma once

#include "runtime/engines/call.h"

namespace attune::runtime {

/// Throws an Error if a page does not exist that the mask may keep a key of: engines take zeros for its keys. Reads the
/// page table and captured tensors, on the host, and nothing else; while no page is missing, only the page table.
void refuse_missing_pages(const Call& call);

}  // namespace attune::runtime
