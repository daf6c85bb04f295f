// runtime/engines/cpu/enter_llvm.h — calls into LLVM that return an Error if memory runs out
#pragma once

#include <cstdint>
#include <functional>

namespace attune::runtime::cpu {

enum class LlvmWork : std::uint8_t { compile, link, unlink };

/// Calls `work`, which uses LLVM, on this thread, or on a thread with a larger stack if little stack is left: call it
/// without a NoFork. A fork waits until the work is done.
///
/// LLVM is compiled without exceptions: a std::bad_alloc that passes its frames runs no destructor, and LLVM ends the
/// process where malloc fails. enter_llvm therefore first reserves the address space that such work usually takes: if
/// that fails, an Error is thrown while no frame of LLVM is on the stack, and a later call may succeed. If memory is
/// short, threads enter one after another.
///
/// Work that needs more memory can still run out. A longjmp then leaves its frames, the memory that they own is lost,
/// an Error is thrown here, and every later call throws an Error too, because LLVM's state is unknown. If other threads
/// are inside LLVM at that time, the process ends with a message: they may wait for a lock that this thread will never
/// release.
void enter_llvm(LlvmWork kind, const std::function<void()>& work);

}  // namespace attune::runtime::cpu
