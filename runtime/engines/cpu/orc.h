// runtime/engines/cpu/orc.h — LLVM in this process: calls into it that survive a lack of memory, and object code made
// callable by ORC
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

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

/// Loaded object code. Functions from `find` are callable while this object lives.
class Loaded {
 public:
  explicit Loaded(const std::string& object);
  ~Loaded();
  Loaded(Loaded&&) noexcept;

  /// The approximate memory that the code takes while it is loaded.
  std::size_t bytes() const { return bytes_; }
  /// Null if the object does not define it.
  template <class F>
  F* find(const char* symbol) const {
    return reinterpret_cast<F*>(address(symbol));
  }

 private:
  void* address(const char* symbol) const;
  struct Jit;
  std::unique_ptr<Jit> jit_;
  std::size_t bytes_;
};

}  // namespace attune::runtime::cpu
