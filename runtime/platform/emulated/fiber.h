// runtime/platform/emulated/fiber.h — a separate stack for each thread of an emulated kernel, and switches between them
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

/// Memory for stacks, which are reused. Each of the first 16384 has a guard page below it; of those after them, 32
/// adjacent ones share a guard page.
class Stacks {
 public:
  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  static constexpr std::size_t bytes = 256 << 10;
  /// Returns the lowest address of a stack. Throws an Error if the process may have no more memory or mappings.
  std::byte* take();
  void give_back(std::byte* stack) { free_.push_back(stack); }

 private:
  void add_slab();

  std::vector<std::byte*> slabs_, free_;
};

/// A fiber that begins with body(), which must not return, on this stack.
Fiber new_fiber(std::byte* stack, void (*body)());
/// Throws the Error of processors that have no fibers.
[[noreturn]] void refuse_processor();

}  // namespace attune::runtime::emulated
