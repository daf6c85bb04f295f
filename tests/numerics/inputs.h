// tests/numerics/inputs.h — random tensors of a call, in every memory layout of a caller, between guard pages
#pragma once

#include <attune/attention.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace attune::tests {

/// How the elements of [B, H, S, D], or packed [T, H, D], are laid out.
enum class Layout : std::uint8_t {
  bhsd,      ///< in logical order
  bshd,      ///< a position's heads are adjacent (packed: a head's positions)
  columns,   ///< a column's positions are adjacent: the last stride is not 1
  reversed,  ///< backwards: negative strides
  padded,    ///< with gaps after each row, head and batch entry
  spread,    ///< with a gap between the elements of a row
  one_head,  ///< only inputs: stride 0, one head and one batch entry for all
};

struct Shape {
  std::int64_t batch = 2, q_heads = 4, kv_heads = 2, q_len = 24, kv_len = 28, d = 16, dv = 16;
  DType dtype = DType::f32;
  Layout layout = Layout::bhsd;
  std::optional<Layout> grad_layout{};  ///< of grad_o alone; as `layout` if there is none
  bool kv_shared = false;
  /// Packed sequences, instead of batch, q_len and kv_len. Without kv_lens, keys are dense or in pages.
  std::vector<std::int64_t> q_lens{}, kv_lens{};
  std::int32_t q_offset = 0, kv_offset = 0;
  std::vector<std::int64_t> used{};       ///< the call's kv_len; what is behind these keys is NaN
  std::vector<std::int32_t> q_offsets{};  ///< in place of q_offset
  /// Not 0: keys are in pages of this many rows, in any order, and all entries share the first page. Unused pages
  /// are NaN.
  std::int64_t page = 0;
  bool holes = false;  ///< some pages do not exist
  std::int64_t fixed_split_size = 0;
  bool fp8_kv = false;  ///< k and v hold e4m3
  bool mla = false;     ///< v is a view of k: its first dv columns
  bool e4m3 = false;    ///< q, k and v hold e4m3, and only o is of dtype
  /// Results over other keys are merged in. Some rows have none: their lse is -inf, and their results are NaN.
  bool before = false;
  std::uint64_t seed = 1;

  bool packed() const { return !q_lens.empty(); }
  std::int64_t entries() const { return packed() ? static_cast<std::int64_t>(q_lens.size()) : batch; }
  /// Whether entries have settings of their own, which only forward calls can be.
  bool per_entry() const {
    return kv_offset || page || fixed_split_size || !used.empty() || !q_offsets.empty() ||
           q_lens.empty() != kv_lens.empty();
  }
  /// Such as: "f32 2 x 4/2 x 24/28 x 16/16 columns, from 5, seed 1"
  std::string describe() const;
};

/// A tensor and its memory, which ends where a page without access begins.
struct Placed {
  Tensor tensor;
  std::shared_ptr<std::byte> memory;
  std::size_t size = 0;

  /// Whether every byte outside of the elements is unchanged.
  bool gaps_untouched() const;
};
/// All bytes start as 0xa5.
Placed place(DType dtype, std::span<const std::int64_t> shape, Layout layout = Layout::bhsd);
inline Placed place(DType dtype, std::initializer_list<std::int64_t> shape, Layout layout = Layout::bhsd) {
  return place(dtype, std::span(shape.begin(), shape.size()), layout);
}
/// Calls `body` with the offset of every element, in logical order.
void each_element(const Tensor& t, const std::function<void(std::int64_t)>& body);
/// Bytes that end where a page without access begins.
std::shared_ptr<std::byte> guarded(std::size_t size);

/// Normally distributed q, k, v and gradients.
struct Inputs {
  Shape shape;
  Placed q, k, v, grad_o, grad_lse, cu_seqlens_q{}, cu_seqlens_kv{}, kv_len{}, q_offsets{}, page_table{}, o_before{},
      lse_before{};

  std::vector<std::int64_t> shape_of_o() const;
  std::vector<std::int64_t> shape_of_lse() const;
  /// Without outputs.
  Forward forward() const;
  Backward backward() const;
};
Inputs inputs(const Shape& shape);

}  // namespace attune::tests
