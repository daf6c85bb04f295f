// python/core/torch_tensors.cpp — torch's tensors as C has them, and new ones for results and working memory
#include "python/core/torch_tensors.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>

namespace attune::python {
namespace {

/// Torch's types that attentions compute in, and those that only captures have.
constexpr std::pair<std::int32_t Shim::*, attune_dtype> types[] = {
    {&Shim::f32, {ATTUNE_FLOAT, 32, 1}}, {&Shim::bf16, {ATTUNE_BFLOAT, 16, 1}}, {&Shim::f16, {ATTUNE_FLOAT, 16, 1}},
    {&Shim::f64, {ATTUNE_FLOAT, 64, 1}}, {&Shim::boolean, {ATTUNE_BOOL, 8, 1}}, {&Shim::i32, {ATTUNE_INT, 32, 1}},
    {&Shim::i64, {ATTUNE_INT, 64, 1}},   {&Shim::e4m3, {ATTUNE_E4M3, 8, 1}}};

/// Of torch's number; without bits for types that attentions do not read.
attune_dtype dtype_of(std::int32_t type) {
  for (const auto& [number, known] : types)
    if (shim().*number == type) return known;
  return {};
}

std::size_t at(int i) { return static_cast<std::size_t>(i); }

Layout layout_of(const attune_tensor& t, int rank) {
  Layout out{std::clamp(rank, 0, 4)};
  std::copy_n(t.shape, out.rank, out.sizes.begin());
  std::copy_n(t.strides, out.rank, out.strides.begin());
  return out;
}

/// True if no element is there for two, and none is beside the tensor; as torch has it, also for an empty one.
bool is_dense(const Layout& t) {
  if (std::find(t.sizes.begin(), t.sizes.begin() + t.rank, 0) != t.sizes.begin() + t.rank) return true;
  std::array<std::pair<std::int64_t, std::int64_t>, 4> order;  // stride and extent
  auto last = order.begin();
  for (std::size_t i = 0; i < at(t.rank); ++i)
    if (t.sizes[i] != 1) *last++ = {t.strides[i], t.sizes[i]};
  std::sort(order.begin(), last);
  std::int64_t step = 1;
  for (auto one = order.begin(); one != last; ++one) {
    if (one->first != step) return false;
    step *= one->second;
  }
  return true;
}

/// The order that torch gives a tensor like one with holes: sorted by strides, stably, where a stride of 0 has no place
/// of its own.
Layout::Order order_of(const Layout& t) {
  Layout::Order out{};  // from the innermost to the outermost, until it is turned round
  std::iota(out.rend() - t.rank, out.rend(), 0);
  const auto is_outside = [&](int a, int b) {  // negative: b is outside; 0: either may be
    const std::int64_t step = t.strides[at(a)], other = t.strides[at(b)];
    if (step == 0 || other == 0) return 0;
    return step != other ? (step < other ? -1 : 1) : t.sizes[at(a)] > t.sizes[at(b)] ? 1 : 0;
  };
  for (std::size_t i = 1; i < at(t.rank); ++i)
    for (std::size_t here = i, before = i; before-- > 0;) {
      const int found = is_outside(out[before], out[here]);
      if (found < 0) break;
      if (found > 0) std::swap(out[before], out[here]), here = before;
    }
  std::reverse(out.begin(), out.begin() + t.rank);
  return out;
}

constexpr Layout::Order as_they_come{0, 1, 2, 3};

}  // namespace

std::int32_t type_of(attune_dtype type) {
  for (const auto& [number, known] : types)
    if (same(known, type)) return shim().*number;
  return shim().f32;  // attune refuses the call by this type
}

attune_tensor memory_of(Shim::Tensor of) {
  const Shim& s = shim();
  attune_tensor out{};
  std::int64_t rank = 0;
  std::int32_t type = 0, kind = 0, device = 0;
  check(s.get_data_ptr(of, &out.data) | s.get_dim(of, &rank) | s.get_sizes(of, &out.shape) |
            s.get_strides(of, &out.strides) | s.get_dtype(of, &type) | s.get_device_type(of, &kind) |
            s.get_device_index(of, &device),
        "tensor");
  out.ndim = static_cast<std::int32_t>(rank);
  out.device = {kind == s.cuda ? ATTUNE_CUDA : ATTUNE_CPU, kind == s.cuda ? device : 0};
  out.dtype = dtype_of(type);
  if (out.dtype.bits == 0) throw std::runtime_error("attune: a type that only Python passes on");
  return out;
}

Layout Layout::in(const Order& order) const {
  Layout out = *this;
  std::int64_t step = 1;
  for (int i = rank; i-- > 0;) {
    const std::size_t of = at(order[at(i)]);
    out.strides[of] = step;
    step *= std::max<std::int64_t>(sizes[of], 1);
  }
  return out;
}

Made new_tensor(attune_device on, std::int32_t type, const Layout& layout) {
  const Shim& s = shim();
  Shim::Tensor made = nullptr;
  constexpr std::int32_t cpu = 0;
  if (s.empty_strided(layout.rank, layout.sizes.data(), layout.strides.data(), type,
                      on.device_type == ATTUNE_CUDA ? s.cuda : cpu, on.device_id, &made) != 0)
    throw NoMemory(on, std::accumulate(layout.sizes.begin(), layout.sizes.begin() + layout.rank, std::int64_t{1},
                                       std::multiplies()));
  Made out{Owned(made)};
  out.at.device = on, out.at.ndim = layout.rank;
  check(s.get_data_ptr(made, &out.at.data) | s.get_sizes(made, &out.at.shape) | s.get_strides(made, &out.at.strides),
        "tensor");
  out.at.dtype = dtype_of(type);
  return out;
}

Made empty_like(const attune_tensor& t) {
  const Layout layout = layout_of(t, t.ndim);
  return new_tensor(t.device, type_of(t.dtype), is_dense(layout) ? layout : layout.in(order_of(layout)));
}

Made new_output(const attune_tensor& q, const attune_tensor& v) {
  Layout layout = layout_of(q, q.ndim);
  const std::size_t last = at(std::max(layout.rank - 1, 0));
  const std::int64_t width = v.ndim > 0 ? v.shape[v.ndim - 1] : 1;
  if (width != layout.sizes[last] || layout.strides[last] != 1 || !is_dense(layout)) {
    Layout::Order order = as_they_come;
    std::stable_sort(order.begin(), order.begin() + last, [&](int a, int b) { return q.strides[a] > q.strides[b]; });
    layout.sizes[last] = width;
    layout = layout.in(order);
  }
  return new_tensor(q.device, q.dtype.code == ATTUNE_E4M3 ? shim().bf16 : type_of(q.dtype), layout);
}

Made new_rows(const attune_tensor& q) {
  Layout layout = layout_of(q, q.ndim - 1);
  if (q.ndim == 3) std::swap(layout.sizes[0], layout.sizes[1]);  // packed: [heads, tokens]
  return new_tensor(q.device, q.dtype.bits == 64 ? shim().f64 : shim().f32, layout.in(as_they_come));
}

}  // namespace attune::python
