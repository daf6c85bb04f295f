// tests/numerics/inputs.cpp — random tensors of a call, in every memory layout of a caller, between guard pages
#include "tests/numerics/inputs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <numeric>
#include <random>

#include "runtime/machine/tensor.h"
#include "tests/guarded.h"

namespace attune::tests {
namespace {

/// The dimensions, from the largest stride to the smallest.
std::vector<std::size_t> order(std::size_t rank, Layout layout) {
  std::vector<std::size_t> dims(rank);
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  if (rank < 3) return dims;
  if (layout == Layout::bshd) std::swap(dims[rank - 3], dims[rank - 2]);
  if (layout == Layout::columns) std::swap(dims[rank - 2], dims[rank - 1]);
  return dims;
}

Placed starts(const std::vector<std::int64_t>& lengths) {
  Placed out = place(DType::i32, {static_cast<std::int64_t>(lengths.size()) + 1});
  std::int64_t at = 0;
  runtime::store(out.tensor, 0, 0);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    runtime::store(out.tensor, static_cast<std::int64_t>(i) + 1, static_cast<double>(at += lengths[i]));
  return out;
}

template <class T>
Placed numbers(const std::vector<T>& values) {
  Placed out = place(DType::i32, {static_cast<std::int64_t>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i)
    runtime::store(out.tensor, static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  return out;
}

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Rows [first, last) of one batch entry, or of one page.
void spoil(const Tensor& t, std::int64_t entry, std::int64_t first, std::int64_t last) {
  for (std::int64_t h = 0; h < t.shape[1]; ++h)
    for (std::int64_t i = first; i < last; ++i)
      for (std::int64_t j = 0; j < t.shape[3]; ++j) runtime::store(t, runtime::offset(t, entry, h, i, j), not_a_number);
}

/// The number of keys of entry b; without kv_len, all rows of its pages.
std::int64_t keys_of(const Shape& shape, std::int64_t b) {
  if (!shape.used.empty()) return shape.used[static_cast<std::size_t>(b)];
  return shape.page ? (shape.kv_len + shape.page - 1) / shape.page * shape.page : shape.kv_len;
}
std::int64_t pages_of(const Shape& shape, std::int64_t b) { return (keys_of(shape, b) + shape.page - 1) / shape.page; }

std::int64_t pool_of(const Shape& shape) {
  std::int64_t pages = 2;  // which no entry has
  for (std::int64_t b = 0; b < shape.entries(); ++b) pages += pages_of(shape, b);
  return pages;
}

/// Assigns the pool's pages to entries, and fills unused rows with NaN.
void place_pages(Inputs& in, std::mt19937_64& random) {
  const Shape& shape = in.shape;
  const std::int64_t width = (shape.kv_len + shape.page - 1) / shape.page;
  std::vector<std::int32_t> free(static_cast<std::size_t>(pool_of(shape)));
  std::iota(free.begin(), free.end(), 0);
  std::ranges::shuffle(free, random);
  std::vector<std::int64_t> used(free.size());  // rows of each page
  in.page_table = place(DType::i32, {shape.entries(), width}, Layout::reversed);
  // All entries begin with the same page, unless they had nothing else: their rows would be equal, errors and all.
  const std::int64_t shared = width > 1 ? free.back() : -1;
  if (width > 1) free.pop_back();
  for (std::int64_t b = 0; b < shape.entries(); ++b)
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t rows = std::min(shape.page, keys_of(shape, b) - i * shape.page);
      std::int64_t page = random() % 2 ? -1 : 1 << 30;
      if (rows > 0 && !(shape.holes && random() % 5 == 0)) {
        page = i == 0 && width > 1 ? shared : free.back();
        if (page != shared) free.pop_back();
        std::int64_t& most = used[static_cast<std::size_t>(page)];
        most = std::max(most, rows);
      }
      runtime::store(in.page_table.tensor, runtime::offset(in.page_table.tensor, b, i), static_cast<double>(page));
    }
  for (std::size_t page = 0; page < used.size(); ++page)
    for (const Tensor& t : {in.k.tensor, in.v.tensor})
      spoil(t, static_cast<std::int64_t>(page), used[page], shape.page);
}

/// Fills all rows past the call's keys with NaN.
void spoil_rest(Inputs& in) {
  const Shape& shape = in.shape;
  const bool one = shape.kv_shared || shape.layout == Layout::one_head;
  for (std::int64_t b = 0; b < (one ? 1 : shape.entries()); ++b) {
    std::int64_t used = keys_of(shape, b);
    for (std::int64_t other = 0; one && other < shape.entries(); ++other) used = std::max(used, keys_of(shape, other));
    for (const Tensor& t : {in.k.tensor, in.v.tensor}) spoil(t, b, used, shape.kv_len);
  }
}

std::int64_t total(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

}  // namespace

void each_element(const Tensor& t, const std::function<void(std::int64_t)>& body) {
  Tensor::Extents n{1, 1, 1, 1};
  std::copy_n(t.shape.begin(), t.rank, n.begin());
  for (std::int64_t a = 0; a < n[0]; ++a)
    for (std::int64_t b = 0; b < n[1]; ++b)
      for (std::int64_t c = 0; c < n[2]; ++c)
        for (std::int64_t d = 0; d < n[3]; ++d) body(runtime::offset(t, a, b, c, d));
}

namespace {

/// Every fifth row before has no keys, and those between have about as many as the call's.
void spoil_some(const Inputs& in) {
  const Tensor &o = in.o_before.tensor, &lse = in.lse_before.tensor;
  const bool packed = in.shape.packed();
  const double level = std::log(1 + static_cast<double>(in.shape.kv_len));
  const std::int64_t entries = packed ? 1 : in.shape.batch, rows = packed ? o.shape[0] : o.shape[2];
  for (std::int64_t b = 0; b < entries; ++b)
    for (std::int64_t h = 0; h < in.shape.q_heads; ++h)
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t at = packed ? runtime::offset(lse, h, i) : runtime::offset(lse, b, h, i);
        const bool none = (b + h + i) % 5 == 3;
        runtime::store(lse, at, none ? -std::numeric_limits<double>::infinity() : level + runtime::load(lse, at));
        if (!none) continue;
        for (std::int64_t j = 0; j < in.shape.dv; ++j)
          runtime::store(o, packed ? runtime::offset(o, i, h, j) : runtime::offset(o, b, h, i, j),
                         std::numeric_limits<double>::quiet_NaN());
      }
}

}  // namespace

std::string Shape::describe() const {
  constexpr std::array layouts{"bhsd", "bshd", "columns", "reversed", "padded", "spread", "one head"};
  const std::string lengths = packed() ? fmt::format("[{}]/[{}]", fmt::join(q_lens, " "), fmt::join(kv_lens, " "))
                                       : fmt::format("{}/{}", q_len, kv_len);
  std::string more;
  if (grad_layout) more += fmt::format(", grad_o {}", layouts[static_cast<std::size_t>(*grad_layout)]);
  if (kv_offset) more += fmt::format(", keys from {}", kv_offset);
  if (!used.empty()) more += fmt::format(", kv_len [{}] of {}", fmt::join(used, " "), kv_len);
  if (!q_offsets.empty()) more += fmt::format(", q_offsets [{}]", fmt::join(q_offsets, " "));
  if (page) more += fmt::format(", pages of {}{}", page, holes ? " with holes" : "");
  if (fp8_kv) more += ", k and v of e4m3";
  if (mla) more += ", v within k";
  if (e4m3) more += ", q, k and v of e4m3";
  if (fixed_split_size) more += fmt::format(", splits of {}", fixed_split_size);
  if (before) more += ", results before";
  return fmt::format("{} {} x {}/{} x {} x {}/{} {}{}{}, from {}, seed {}", name_of(dtype), entries(), q_heads,
                     kv_heads, lengths, d, dv, layouts[static_cast<std::size_t>(layout)],
                     kv_shared ? ", k and v shared" : "", more, q_offset, seed);
}

std::shared_ptr<std::byte> guarded(std::size_t size) {
  auto memory = std::make_shared<Guarded<std::byte>>(size);
  std::byte* first = memory->data();
  return {std::move(memory), first};
}

Placed place(DType dtype, std::span<const std::int64_t> shape, Layout layout) {
  Tensor::Extents strides{};
  std::int64_t step = layout == Layout::spread ? 2 : 1;
  const std::vector<std::size_t> dims = order(shape.size(), layout);
  std::int64_t origin = 0, reach = 0;  // offsets of the first and the last element from the lowest one
  for (std::size_t i = dims.size(); i-- > 0;) {
    const std::size_t dim = dims[i];
    const bool shared = layout == Layout::one_head && (shape.size() == 4 ? dim < 2 : shape.size() == 3 && dim == 1);
    const std::int64_t stride = shared ? 0 : layout == Layout::reversed ? -step : step;
    strides[dim] = stride;
    const std::int64_t last = std::max<std::int64_t>(shape[dim], 1) - 1;
    if (stride < 0) origin -= last * stride;
    reach += last * std::abs(stride);
    if (!shared) step *= std::max<std::int64_t>(shape[dim], 1) + (layout == Layout::padded ? 3 : 0);
  }
  Placed out;
  out.size = static_cast<std::size_t>(reach + 1) * size_of(dtype);
  out.memory = guarded(out.size);
  out.tensor = Tensor(out.memory.get() + origin * static_cast<std::int64_t>(size_of(dtype)), dtype, shape,
                      std::span(strides).first(shape.size()));
  return out;
}

bool Placed::gaps_untouched() const {
  std::vector<bool> element(size);
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t origin = static_cast<std::byte*>(tensor.data) - memory.get();
  each_element(tensor, [&](std::int64_t at) {
    for (std::int64_t i = 0; i < bytes; ++i) element[static_cast<std::size_t>(origin + at * bytes + i)] = true;
  });
  for (std::size_t i = 0; i < size; ++i)
    if (!element[i] && memory.get()[i] != std::byte{Guarded<std::byte>::fill}) return false;
  return true;
}

std::vector<std::int64_t> Inputs::shape_of_o() const {
  if (shape.packed()) return {total(shape.q_lens), shape.q_heads, shape.dv};
  return {shape.batch, shape.q_heads, shape.q_len, shape.dv};
}
std::vector<std::int64_t> Inputs::shape_of_lse() const {
  if (shape.packed()) return {shape.q_heads, total(shape.q_lens)};
  return {shape.batch, shape.q_heads, shape.q_len};
}

Forward Inputs::forward() const {
  return {.q = q.tensor,
          .k = k.tensor,
          .v = v.tensor,
          .cu_seqlens_q = cu_seqlens_q.tensor,
          .cu_seqlens_kv = cu_seqlens_kv.tensor,
          .kv_len = kv_len.tensor,
          .page_table = page_table.tensor,
          .q_offset = shape.q_offset,
          .q_offsets = q_offsets.tensor,
          .kv_offset = shape.kv_offset,
          .o_before = o_before.tensor,
          .lse_before = lse_before.tensor,
          .fixed_split_size = shape.fixed_split_size};
}
Backward Inputs::backward() const {
  return {.q = q.tensor,
          .k = k.tensor,
          .v = v.tensor,
          .grad_o = grad_o.tensor,
          .grad_lse = grad_lse.tensor,
          .cu_seqlens_q = cu_seqlens_q.tensor,
          .cu_seqlens_kv = cu_seqlens_kv.tensor,
          .q_offset = shape.q_offset};
}

Inputs inputs(const Shape& shape) {
  std::mt19937_64 random(shape.seed);
  std::normal_distribution<double> normal;
  const auto filled_as = [&](Layout layout, DType dtype, const std::vector<std::int64_t>& extents) {
    Placed out = place(dtype, extents, layout);
    each_element(out.tensor, [&](std::int64_t at) { runtime::store(out.tensor, at, normal(random)); });
    return out;
  };
  const auto filled = [&](DType dtype, const std::vector<std::int64_t>& extents) {
    return filled_as(shape.layout, dtype, extents);
  };
  const auto kv = [&](std::int64_t width) -> std::vector<std::int64_t> {
    if (!shape.kv_lens.empty()) return {total(shape.kv_lens), shape.kv_heads, width};
    if (shape.page) return {pool_of(shape), shape.kv_heads, shape.page, width};
    return {shape.kv_shared ? 1 : shape.entries(), shape.kv_heads, shape.kv_len, width};
  };
  Inputs in{.shape = shape, .q = {}, .k = {}, .v = {}, .grad_o = {}, .grad_lse = {}};
  std::vector<std::int64_t> q = in.shape_of_o();
  q.back() = shape.d;
  in.q = filled(shape.e4m3 ? DType::e4m3 : shape.dtype, q);
  const DType kept = shape.fp8_kv || shape.e4m3 ? DType::e4m3 : shape.dtype;
  in.k = filled(kept, kv(shape.d));
  if (shape.mla) {
    in.v = in.k;
    in.v.tensor.shape[static_cast<std::size_t>(in.v.tensor.rank - 1)] = shape.dv;
  } else {
    in.v = filled(kept, kv(shape.dv));
  }
  in.grad_o = filled_as(shape.grad_layout.value_or(shape.layout), shape.dtype, in.shape_of_o());
  in.grad_lse = filled(DType::f32, in.shape_of_lse());
  if (shape.packed()) in.cu_seqlens_q = starts(shape.q_lens);
  if (!shape.kv_lens.empty()) in.cu_seqlens_kv = starts(shape.kv_lens);
  if (!shape.used.empty()) in.kv_len = numbers(shape.used);
  if (!shape.q_offsets.empty()) in.q_offsets = numbers(shape.q_offsets);
  if (shape.before) {
    in.o_before = filled(shape.dtype, in.shape_of_o());
    in.lse_before = filled(DType::f32, in.shape_of_lse());
    spoil_some(in);
  }
  if (shape.page)
    place_pages(in, random);
  else if (!shape.used.empty() && shape.kv_lens.empty())
    spoil_rest(in);
  return in;
}

}  // namespace attune::tests
