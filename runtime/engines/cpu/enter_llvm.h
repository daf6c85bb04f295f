// runtime/engines/cpu/enter_llvm.h — calls into LLVM, from which memory that runs out comes back as an Error
#pragma once

#include <cstdint>
#include <functional>

namespace attune::runtime::cpu {

enum class LlvmWork : std::uint8_t { compile, link, unlink };

/// Calls `work`, which uses LLVM, on this thread, or on one with a larger stack where little of it is left.
///
/// LLVM is compiled without exceptions: a std::bad_alloc that passes its frames runs no destructor, and LLVM ends the
/// process where malloc fails. So the address space that such work usually takes is asked for first: without it an
/// Error is thrown while no frame of LLVM is on the stack, and a later call may succeed. Where memory is short, threads
/// enter one after the other.
///
/// Work that takes more than that can still run out. Then its frames are left by longjmp, the memory that they own is
/// lost, an Error is thrown here, and every later call throws one too: LLVM's state is unknown by then. If other
/// threads are inside LLVM at that time, the process ends with a message: they may wait for a lock that this thread
/// will never release.
void enter_llvm(LlvmWork kind, const std::function<void()>& work);

}  // namespace attune::runtime::cpu
