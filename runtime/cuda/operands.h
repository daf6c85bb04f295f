// runtime/cuda/operands.h — a call's tensors as kernels take them: strides, rows, and how wide copies may be
#pragma once

#include <initializer_list>

#include "codegen/cuda/args.cuh"
#include "compiler/problem.h"

namespace attune::runtime::cuda {

// Inline: a call fills in six of these, and takes less than a microsecond in all.

/// q, k, v, o and their gradients.
inline Strided strided(const Tensor& t, compiler::Layout layout) {
  const auto& s = t.strides;
  return layout == compiler::Layout::packed ? Strided{t.data, 0, s[1], s[0], s[2]}
                                            : Strided{t.data, s[0], s[1], s[2], s[3]};
}
/// lse and what is shaped like it; empty where the tensor was not given.
inline Rows rows(const Tensor& t, compiler::Layout layout) {
  if (!t.given()) return {};
  const auto& s = t.strides;
  auto* data = static_cast<float*>(t.data);
  return layout == compiler::Layout::packed ? Rows{data, 0, s[0], s[1]} : Rows{data, s[0], s[1], s[2]};
}

/// The widest copy, in bytes, that every row of these tensors allows: 16, 8 or 4, or 0 where elements have to be copied
/// one by one.
int copied_bytes(std::initializer_list<const Tensor*> tensors);
/// The same where such copies must also divide a row.
int stored_bytes(const Tensor& t);

/// Refuses an output that this engine cannot write: tensors of f64, and rows (lse, max) that are not f32.
void require_writable(const char* name, const Tensor& t);
void require_f32_rows(const char* name, const Tensor& t);

}  // namespace attune::runtime::cuda
