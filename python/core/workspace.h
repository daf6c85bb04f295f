// python/core/workspace.h — how much working memory a call on a GPU takes, which its caller's library allocates
#pragma once

#include <cstddef>
#include <functional>

#include "python/core/handle.h"

namespace attune::python {

/// The bytes of working memory of a call. Equal calls take equal memory: it is looked up once, and then `prepared`, if
/// given, is called.
attune_error* find_workspace(SharedAttention& of, const attune_call& call, const attune_with& with, std::size_t& bytes,
                             const std::function<void()>& prepared = {});

}  // namespace attune::python
