// c/tensor.h — DLPack's tensors as attune's
#pragma once

#include <attune/c.h>
#include <attune/tensor.h>

#include <string>
#include <string_view>

namespace attune::c {

/// A tensor's name in an Error: "q", "capture `slope`". The text is only built for an Error, since a call takes a
/// microsecond.
struct Called {
  const char* before = "";
  std::string_view name;
  const char* after = "";

  std::string text() const;
};

/// Returns an empty Tensor for NULL.
Tensor tensor_of(const attune_tensor* from, const Called& called);
inline Tensor tensor_of(const attune_tensor* from, const char* name) { return tensor_of(from, Called{.name = name}); }

}  // namespace attune::c
