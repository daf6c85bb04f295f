// runtime/engines/emulated/fiber.h — a separate stack for each thread of an emulated kernel, and switches between them
#pragma once

#include <cstddef>
#include <vector>

namespace attune::runtime::emulated {

/// The state of a suspended flow of control: its stack pointer, with its registers saved on the stack.
struct Fiber {
  void* at = nullptr;
};

/// Resumes `to` where it stopped; returns when something resumes `from`.
void switch_fibers(Fiber& from, const Fiber& to);

/// Memory for stacks, which are reused. Each has a guard page below it.
class Stacks {
 public:
  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  static constexpr std::size_t bytes = 256 << 10;
  /// Returns the lowest address of a stack.
  std::byte* take();
  void give_back(std::byte* stack) { free_.push_back(stack); }

 private:
  std::vector<std::byte*> all_, free_;
};

/// A fiber that begins with body(), which must not return, on this stack.
Fiber new_fiber(std::byte* stack, void (*body)());
/// Throws the Error of processors that have no fibers.
[[noreturn]] void refuse_processor();

}  // namespace attune::runtime::emulated
