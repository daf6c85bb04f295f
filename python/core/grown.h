// python/core/grown.h — a list that only grows, for kernels that are called without the GIL
#pragma once

#include <atomic>
#include <utility>

namespace attune::python {

/// Read and added to without a lock: a child that is forked while another thread holds one finds it locked. Its values
/// stay until the process ends.
template <class T>
class Grown {
 public:
  /// The latest that fits; null if there is none.
  template <class Fits>
  T* find(const Fits& fits) const {
    for (Node* one = latest_.load(std::memory_order_acquire); one; one = one->before)
      if (fits(one->value)) return &one->value;
    return nullptr;
  }
  T& add(T value) {
    auto* const made = new Node{std::move(value), latest_.load(std::memory_order_relaxed)};
    while (!latest_.compare_exchange_weak(made->before, made, std::memory_order_release)) {
    }
    return made->value;
  }

 private:
  struct Node {
    T value;
    Node* before;
  };
  std::atomic<Node*> latest_{nullptr};
};

}  // namespace attune::python
