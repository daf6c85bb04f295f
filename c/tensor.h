// c/tensor.h — DLPack's tensors as attune's
#pragma once

#include <attune/c.h>
#include <attune/tensor.h>

#include <string>
#include <string_view>

namespace attune::c {

/// What an Error calls a tensor: "q", "capture `slope`". Put together only then: a call has a microsecond.
struct Called {
  const char* before = "";
  std::string_view name;
  const char* after = "";

  std::string text() const;
};

/// None for NULL.
Tensor tensor_of(const attune_tensor* from, const Called& called);
inline Tensor tensor_of(const attune_tensor* from, const char* name) { return tensor_of(from, Called{.name = name}); }

}  // namespace attune::c
