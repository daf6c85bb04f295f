// codegen/llvm/args.h — members of the C++ structs that kernels are called with
#pragma once

#include <type_traits>

#include "codegen/llvm/vec.h"

namespace attune::codegen {

/// args(&Product::k) is the code that reads it.
template <class Struct>
class Args {
 public:
  Args(Code& code, Val pointer) : code_(code), pointer_(pointer) {}

  template <class T>
  Val operator()(T Struct::*member) const {
    static constexpr Struct model{};
    const auto offset = reinterpret_cast<const char*>(&(model.*member)) - reinterpret_cast<const char*>(&model);
    return code_.member(type_of<T>(), pointer_, static_cast<std::size_t>(offset));
  }

 private:
  template <class T>
  llvm::Type* type_of() const {
    if constexpr (std::is_pointer_v<T>) return code_.pointer();
    if constexpr (std::is_same_v<T, float>) return code_.f32();
    if constexpr (std::is_integral_v<T>) return code_.ir().getIntNTy(8 * sizeof(T));
  }

  Code& code_;
  Val pointer_;
};

}  // namespace attune::codegen
