// ir/stack.h — how much of its stack a thread has left
#pragma once

#include <cstddef>

namespace attune::ir {

/// Bytes between here and the end of this thread's stack; no limit where the system does not say it.
std::size_t stack_left();

}  // namespace attune::ir
