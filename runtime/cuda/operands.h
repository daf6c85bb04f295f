// runtime/cuda/operands.h — a call's tensors as kernels take them: strides, rows, and how wide copies may be
#pragma once

#include <initializer_list>

#include "codegen/cuda/args.cuh"
#include "compiler/problem.h"

namespace attune::runtime::cuda {

/// q, k, v, o and their gradients.
Strided strided(const Tensor& t, compiler::Layout layout);
/// lse and what is shaped like it; empty where the tensor was not given.
Rows rows(const Tensor& t, compiler::Layout layout);

/// The widest copy, in bytes, that every row of these tensors allows: 16, 8 or 4, or 0 where elements have to be copied
/// one by one.
int copied_bytes(std::initializer_list<const Tensor*> tensors);
/// The same where such copies must also divide a row.
int stored_bytes(const Tensor& t);

/// Refuses an output that this engine cannot write: tensors of f64, and rows (lse, max) that are not f32.
void require_writable(const char* name, const Tensor& t);
void require_f32_rows(const char* name, const Tensor& t);

}  // namespace attune::runtime::cuda
