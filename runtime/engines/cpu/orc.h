// runtime/engines/cpu/orc.h — makes object code callable: LLVM's ORC with the few symbols that kernels may link to
#pragma once

#include <memory>
#include <string>

namespace attune::runtime::cpu {

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
