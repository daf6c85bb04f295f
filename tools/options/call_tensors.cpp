// tools/options/call_tensors.cpp — the tensors of a call that options describe, with numbers that are the same in every
// run
#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "codegen/ceil_div.h"
#include "runtime/machine/tensor.h"
#include "tools/options/call_options.h"

namespace attune::tools {

Owned made(DType type, std::span<const std::int64_t> shape, const Device& device) {
  Owned out;
  out.memory = detail::allocate(device, type, shape);
  out.tensor = Tensor(out.memory.get(), type, shape, {}, device);
  return out;
}

namespace {

Owned filled(DType type, std::span<const std::int64_t> shape, const std::function<double(std::int64_t)>& value) {
  const Owned out = made(type, shape);
  for (std::int64_t i = 0; i < out.tensor.size(); ++i) runtime::store(out.tensor, i, value(i));
  return out;
}

}  // namespace

Data Data::described() {
  Data out(Device::cuda());
  out.described_ = true;
  return out;
}

Owned Data::at_an_address(DType type, const std::vector<std::int64_t>& shape) const {
  Owned out;
  out.tensor = Tensor(reinterpret_cast<void*>(next_), type, shape, {}, device_);
  constexpr std::uintptr_t grain = 1 << 10;  // any device aligns memory to less
  next_ += round_up(static_cast<std::uintptr_t>(out.tensor.size()) * size_of(type), grain) + grain;
  return out;
}

Owned Data::fill(DType type, const std::vector<std::int64_t>& shape, const std::function<double(std::int64_t)>& value) {
  return described_ ? at_an_address(type, shape) : moved(filled(type, shape, value), device_);
}

Owned Data::normal(DType type, const std::vector<std::int64_t>& shape) {
  const auto draw = [&](std::int64_t) { return static_cast<double>(normal_(dice_)); };
  constexpr std::int64_t most = 1 << 20;
  const std::int64_t size = Tensor(nullptr, type, shape).size();
  if (described_ || size <= most) return fill(type, shape, draw);
  const Owned some = filled(type, std::array{most}, draw);
  const Owned out = made(type, shape, device_);
  const auto width = static_cast<std::int64_t>(size_of(type));
  for (std::int64_t at = 0; at < size; at += most) {
    const std::array part{std::min(most, size - at)};
    copy(Tensor(some.tensor.data, type, part),
         Tensor(static_cast<std::byte*>(out.memory.get()) + at * width, type, part, {}, device_));
  }
  return out;
}

Owned Data::zeros(DType type, const std::vector<std::int64_t>& shape) const {
  return described_ ? at_an_address(type, shape) : made(type, shape, device_);
}

namespace {

/// A dense tensor, or the rows of packed sequences.
std::vector<std::int64_t> shape_of(const CallOptions& of, std::int64_t heads, std::int64_t positions,
                                   std::span<const std::int64_t> lengths, std::int64_t width) {
  if (!of.packed()) return {of.batch, heads, positions, width};
  return {std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), heads, width};
}
std::vector<std::int64_t> shape_of_q(const CallOptions& of, std::int64_t width) {
  return shape_of(of, of.heads, of.seq, of.lengths, width);
}
/// The number of keys of each packed sequence.
const std::vector<std::int64_t>& packed_keys(const CallOptions& of) {
  return of.kv_lengths.empty() ? of.lengths : of.kv_lengths;
}
std::vector<std::int64_t> shape_of_kv(const CallOptions& of, std::int64_t width) {
  return shape_of(of, of.of_kv_heads(), of.of_kv_seq(), packed_keys(of), width);
}

Owned starts_of(const std::vector<std::int64_t>& lengths) {
  return filled(DType::i32, std::array{static_cast<std::int64_t>(lengths.size()) + 1}, [&](std::int64_t i) {
    return static_cast<double>(std::accumulate(lengths.begin(), lengths.begin() + i, std::int64_t{0}));
  });
}

/// The first columns of k.
Owned columns_of(const Owned& k, std::int64_t columns) {
  const auto rank = static_cast<std::size_t>(k.tensor.rank);
  Tensor::Extents shape = k.tensor.shape;
  shape[rank - 1] = columns;
  return {k.memory, Tensor(k.tensor.data, k.tensor.dtype, std::span(shape).first(rank),
                           std::span(k.tensor.strides).first(rank), k.tensor.device)};
}

}  // namespace

ForwardTensors::ForwardTensors(const CallOptions& from, Data& data) {
  q = data.normal(from.type(), shape_of_q(from, from.d));
  if (from.decode)
    make_cache(from, data);
  else
    q_offset = static_cast<std::int32_t>(from.first_query());
  if (!k.tensor.given()) k = data.normal(from.kept_type(), shape_of_kv(from, from.d));
  if (from.v_columns)
    v = columns_of(k, *from.v_columns);
  else if (!v.tensor.given())
    v = data.normal(from.kept_type(), shape_of_kv(from, from.of_dv()));
  o = data.zeros(from.out_type(), shape_of_q(from, from.of_dv()));
  if (!from.packed()) {
    lse = data.zeros(DType::f32, {from.batch, from.heads, from.seq});
    return;
  }
  lse = data.zeros(DType::f32, {from.heads, q.tensor.shape[0]});
  starts = starts_of(from.lengths);
  kv_starts = from.kv_lengths.empty() ? starts : starts_of(from.kv_lengths);
  if (from.starts == "device")
    for (Owned* const one : {&starts, &kv_starts}) *one = moved(*one, data.device());
  longest = from.seq;
  longest_kv = from.kv_lengths.empty() ? longest : *std::ranges::max_element(from.kv_lengths);
}

void ForwardTensors::make_cache(const CallOptions& from, Data& data) {
  const auto batch = static_cast<std::size_t>(from.batch);
  const auto keys = [&](std::size_t b) { return from.kv_lengths.empty() ? from.of_kv_seq() : from.kv_lengths[b]; };
  const auto each = [&](const std::function<std::int64_t(std::size_t)>& value) {
    return data.fill(DType::i32, {from.batch},
                     [&](std::int64_t b) { return static_cast<double>(value(static_cast<std::size_t>(b))); });
  };
  if (from.kv_lengths.empty())
    q_offset = static_cast<std::int32_t>(from.of_kv_seq() - from.seq);
  else
    q_offsets = each([&](std::size_t b) { return keys(b) - from.seq; });
  // If all entries have the same length, a call needs no lengths, unless the last pages are partly filled.
  if (!from.kv_lengths.empty() || (from.page_size && from.of_kv_seq() % *from.page_size != 0)) kv_len = each(keys);
  if (!from.page_size) return;
  const auto pages_of = [&](std::size_t b) { return ceil_div(keys(b), *from.page_size); };
  std::int64_t total = 0;
  for (std::size_t b = 0; b < batch; ++b) total += pages_of(b);
  std::vector<std::int64_t> order(static_cast<std::size_t>(total));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937(7));
  const std::int64_t most = ceil_div(from.of_kv_seq(), *from.page_size);
  std::vector<std::int64_t> table(batch * static_cast<std::size_t>(most), -1);
  auto next = order.begin();
  for (std::size_t b = 0; b < batch; ++b)
    next = std::ranges::copy_n(next, pages_of(b), table.begin() + static_cast<std::int64_t>(b) * most).in;
  page_table = data.fill(DType::i32, {from.batch, most},
                         [&](std::int64_t i) { return static_cast<double>(table[static_cast<std::size_t>(i)]); });
  k = data.normal(from.kept_type(), {total, from.of_kv_heads(), *from.page_size, from.d});
  if (!from.v_columns) v = data.normal(from.kept_type(), {total, from.of_kv_heads(), *from.page_size, from.of_dv()});
}

Forward ForwardTensors::call() const {
  return {.q = q.tensor,
          .k = k.tensor,
          .v = v.tensor,
          .o = o.tensor,
          .lse = lse.tensor,
          .cu_seqlens_q = starts.tensor,
          .cu_seqlens_kv = kv_starts.tensor,
          .kv_len = kv_len.tensor,
          .page_table = page_table.tensor,
          .q_offset = q_offset,
          .q_offsets = q_offsets.tensor,
          .max_q_len = longest,
          .max_kv_len = longest_kv};
}

BackwardTensors::BackwardTensors(const CallOptions& from, Data& data) {
  grad_o = data.normal(from.type(), shape_of_q(from, from.of_dv()));
  dq = data.zeros(from.type(), shape_of_q(from, from.d));
  dk = data.zeros(from.type(), shape_of_kv(from, from.d));
  dv = data.zeros(from.type(), shape_of_kv(from, from.of_dv()));
}

Backward BackwardTensors::call(const ForwardTensors& forward) const {
  return {.q = forward.q.tensor,
          .k = forward.k.tensor,
          .v = forward.v.tensor,
          .grad_o = grad_o.tensor,
          .o = forward.o.tensor,
          .lse = forward.lse.tensor,
          .dq = dq.tensor,
          .dk = dk.tensor,
          .dv = dv.tensor,
          .cu_seqlens_q = forward.starts.tensor,
          .cu_seqlens_kv = forward.kv_starts.tensor,
          .q_offset = forward.q_offset,
          .max_q_len = forward.longest,
          .max_kv_len = forward.longest_kv};
}

}  // namespace attune::tools
