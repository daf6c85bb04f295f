// runtime/engines/cuda/operands.h — a call's tensors as kernel arguments: strides, rows, the width of copies, tensor
// maps
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "codegen/cuda/contract/args.cuh"
#include "compiler/problem.h"

namespace attune::runtime::cuda {

// Inline, because a call fills in six of these, and the whole call must take less than a microsecond.

inline Stored stored(DType type) {
  return type == DType::f64    ? Stored::f64
         : type == DType::f32  ? Stored::f32
         : type == DType::f16  ? Stored::f16
         : type == DType::e4m3 ? Stored::e4m3
                               : Stored::bf16;
}
/// One number per batch entry; empty if the tensor was not given. An emulated GPU may get i64, of which kernels read
/// the low words: the call's check has read all numbers, and they fit. GPUs are emulated on x86-64 only.
inline Numbers numbers(const Tensor& t) {
  const auto words = static_cast<std::int64_t>(size_of(t.dtype) / sizeof(int));
  return t.given() ? Numbers{static_cast<const int*>(t.data), t.strides[0] * words} : Numbers{};
}
/// The page table of a pool such as k; empty if the tensor was not given.
inline PageTable page_table(const Tensor& t, const Tensor& pool) {
  if (!t.given()) return {};
  return {.at = static_cast<const int*>(t.data),
          .entry = t.strides[0],
          .nth = t.strides[1],
          .rows = static_cast<int>(pool.shape[2]),
          .count = static_cast<int>(pool.shape[0])};
}

/// q, k, v, o and their gradients.
inline Strided strided(const Tensor& t, compiler::Layout layout) {
  const auto& s = t.strides;
  return layout == compiler::Layout::packed ? Strided{t.data, 0, s[1], s[0], s[2]}
                                            : Strided{t.data, s[0], s[1], s[2], s[3]};
}
/// lse and tensors that are shaped like it; empty if the tensor was not given.
inline Rows rows(const Tensor& t, compiler::Layout layout) {
  if (!t.given()) return {};
  const auto& s = t.strides;
  auto* data = static_cast<float*>(t.data);
  return layout == compiler::Layout::packed ? Rows{data, 0, s[0], s[1]} : Rows{data, s[0], s[1], s[2]};
}

/// The widest copy, in bytes, that every row of these tensors allows: 16, 8 or 4, or 0 if elements have to be copied
/// one by one.
inline int copied_bytes(std::initializer_list<const Tensor*> tensors) {
  std::uint64_t bits = 16;
  for (const Tensor* t : tensors) {
    const auto last = static_cast<std::size_t>(t->rank) - 1;
    if (t->shape[last] > 1 && t->strides[last] != 1) return 0;
    bits |= reinterpret_cast<std::uintptr_t>(t->data);
    for (std::size_t i = 0; i < last; ++i)
      if (t->shape[i] > 1) bits |= static_cast<std::uint64_t>(t->strides[i]) * size_of(t->dtype);
  }
  const auto most = static_cast<int>(bits & -bits);
  return most >= 4 ? most : 0;
}
/// The same if such copies must also divide a row.
inline int stored_bytes(const Tensor& t) {
  const auto row = static_cast<int>(t.shape[static_cast<std::size_t>(t.rank) - 1]) * static_cast<int>(size_of(t.dtype));
  const int most = std::min(copied_bytes({&t}), row & -row);
  return most >= 4 ? most : 0;
}

/// What kernels read of a call's entries, without tile lists.
inline Entries entries_of(const compiler::Problem& p, const int* q_starts, const int* kv_starts) {
  Entries out{};
  out.batch = static_cast<int>(p.batch);
  out.group = static_cast<int>(p.group);
  out.q_len = static_cast<int>(p.q.length);
  out.kv_len = static_cast<int>(p.kv.length);
  out.q_offset = p.q_offset;
  out.kv_offset = p.kv_offset;
  out.kv_shared = p.kv_shared;
  out.q_starts = q_starts;
  out.kv_starts = kv_starts;
  return out;
}

inline void set_entries(Entries& args, const Entries& of) { args = of; }

/// True if there is no query, and so nothing to compute.
inline bool is_empty(const compiler::Problem& p) { return p.batch == 0 || p.q_heads == 0 || p.q.length == 0; }

/// True if TMA can copy boxes of this [B, H, S, D] or packed [T, H, D] tensor: rows are contiguous, other strides are
/// multiples of 16 bytes, and no extent is 0.
bool has_boxes(const Tensor& t);

/// Boxes of `rows` positions by 128 bytes, swizzled in shared memory.
TensorMap boxes_of(const Tensor& t, int rows);
/// The same, with rows that alternate between `heads` query heads of a key head; each key head has `group` of them.
TensorMap boxes_of_heads(const Tensor& t, int rows, int heads, std::int64_t group);
/// Boxes of q or o, if `heads` heads share a tile.
inline TensorMap query_boxes(const Tensor& t, int rows, int heads, std::int64_t group) {
  return heads == 1 ? boxes_of(t, rows) : boxes_of_heads(t, rows, heads, group);
}

/// Refuses outputs that this engine cannot write: tensors of f64, and rows (lse, max) that are not f32; and results
/// and gradients that it cannot read.
void check_outputs(const Forward& call);
void check_operands(const Backward& call);

}  // namespace attune::runtime::cuda
