// runtime/engines/emulated/fiber.h — a stack of its own for each thread of an emulated kernel, and switches between
// them
#pragma once

#include <cstddef>
#include <vector>

namespace attune::runtime::emulated {

/// Where a flow of control stopped: its stack pointer, below which its registers lie.
struct Fiber {
  void* at = nullptr;
};

/// Goes on where `to` stopped; returns when something goes on here.
void switch_fibers(Fiber& from, const Fiber& to);

/// Memory for stacks, which are reused. Each has a page below it that nothing may touch.
class Stacks {
 public:
  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  static constexpr std::size_t bytes = 256 << 10;
  /// The lowest address.
  std::byte* take();
  void give_back(std::byte* stack) { free_.push_back(stack); }

 private:
  std::vector<std::byte*> all_, free_;
};

/// A fiber that begins with body(), which must not return, on this stack.
Fiber new_fiber(std::byte* stack, void (*body)());

}  // namespace attune::runtime::emulated
