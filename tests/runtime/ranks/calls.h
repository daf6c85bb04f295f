// tests/runtime/ranks/calls.h — a call alone and over ranks, on the host or on devices, and how results differ
#pragma once

#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "compiler/trace.h"
#include "runtime/machine/tensor.h"
#include "tests/elements.h"
#include "tests/numerics/inputs.h"
#include "tests/numerics/moved.h"
#include "tests/ranks.h"

namespace attune::tests::ranks {

using How = Sharding::How;

/// Copies the rows of a tensor that ranges name, along one dimension, to those of a rank, or the other way.
inline void copy_rows(const Tensor& whole, std::span<const Sharding::Range> rows, std::size_t dimension,
                      const Tensor& local, bool to_whole) {
  const auto last = static_cast<std::size_t>(local.rank) - 1;
  const bool by_rows = dimension != last && local.strides[last] == 1 && whole.strides[last] == 1;
  const std::int64_t width = by_rows ? local.shape[last] : 1;
  Tensor::Extents i{};
  const std::int64_t size = local.size() / std::max<std::int64_t>(width, 1);
  const auto bytes = static_cast<std::int64_t>(size_of(local.dtype));
  for (std::int64_t n = 0; n < size; ++n) {
    std::int64_t rest = n;
    for (int d = local.rank - by_rows; d-- > 0;) {
      const auto dim = static_cast<std::size_t>(d);
      i[dim] = rest % local.shape[dim];
      rest /= local.shape[dim];
    }
    std::int64_t row = i[dimension], there = 0, here = 0;
    for (const Sharding::Range& s : rows) {
      if (row < s.end - s.begin) {
        row += s.begin;
        break;
      }
      row -= s.end - s.begin;
    }
    for (int d = 0; d < local.rank; ++d) {
      const auto dim = static_cast<std::size_t>(d);
      here += i[dim] * local.strides[dim];
      there += (dim == dimension ? row : i[dim]) * whole.strides[dim];
    }
    if (by_rows) {
      auto *at = static_cast<std::byte*>(local.data) + here * bytes,
           *of_whole = static_cast<std::byte*>(whole.data) + there * bytes;
      std::memcpy(to_whole ? of_whole : at, to_whole ? at : of_whole, static_cast<std::size_t>(width * bytes));
    } else if (to_whole)
      runtime::store(whole, there, runtime::load(local, here));
    else
      runtime::store(local, here, runtime::load(whole, there));
  }
}

inline std::int64_t rows_in(std::span<const Sharding::Range> all) {
  std::int64_t rows = 0;
  for (const Sharding::Range& s : all) rows += s.end - s.begin;
  return rows;
}

inline Placed sliced(const Tensor& whole, std::span<const Sharding::Range> rows, std::size_t dimension, bool filled,
                     Layout layout = Layout::bhsd) {
  std::vector<std::int64_t> shape(whole.shape.begin(), whole.shape.begin() + whole.rank);
  shape[dimension] = rows_in(rows);
  Placed out = place(whole.dtype, shape, layout);
  if (filled) copy_rows(whole, rows, dimension, out.tensor, false);
  return out;
}

struct Results {
  Placed o, lse, max;
};
inline Results results_for(const Inputs& in, DType type) {
  return {place(type, in.shape_of_o()), place(DType::f32, in.shape_of_lse()), place(DType::f32, in.shape_of_lse())};
}

/// Where ranks compute: on the host, or with copies, distributed over this many devices.
struct Where {
  int devices = 0;
};

/// A rank's copies of tensors, and of what a mod captures, where it computes.
class Copies {
 public:
  Copies(const Where& where, int rank) : device_(where.devices > 0 ? rank % where.devices : -1) {}

  const Tensor& operator()(const Tensor& t) {
    if (device_ < 0 || !t.given()) return kept_.emplace_back(t);
    return moved_.emplace_back(t, Device::cuda(device_)).tensor();
  }
  /// Captures of the attention, for the call to bind; none where it computes on the host.
  std::span<const Tensor> captures(const Attention& attention) {
    if (device_ < 0) return {};
    for (const Tensor& t : compiler::trace(attention).slots.captures) captured_.push_back((*this)(t));
    return captured_;
  }
  void back() const {
    for (const Moved& one : moved_) one.back();
  }

 private:
  int device_;
  std::deque<Tensor> kept_;
  std::deque<Moved> moved_;
  std::vector<Tensor> captured_;
};

inline void copy_inputs(Forward& call, Copies& copies) {
  for (Tensor* t : {&call.q, &call.k, &call.v, &call.o, &call.lse, &call.max}) *t = copies(*t);
}

inline Results alone(const Attention& attention, const Inputs& in, Where where = {}) {
  Results out = results_for(in, in.shape.dtype);
  Forward call = in.forward();
  call.o = out.o.tensor;
  call.lse = out.lse.tensor;
  call.max = out.max.tensor;
  Copies copies(where, 0);
  copy_inputs(call, copies);
  call.captures = copies.captures(attention);
  attention.run(call);
  copies.back();
  return out;
}

/// The same over ranks, brought together. Throws what a rank throws.
inline Results together(const Attention& attention, const Inputs& in, int count, const How& how,
                        Layout layout = Layout::bhsd, Where where = {}, std::vector<Transport> ranks = {}) {
  if (ranks.empty()) ranks = threads(count, 60);
  Results out = results_for(in, in.shape.dtype);
  const std::size_t q_rows = in.shape.packed() ? 0 : 2, lse_rows = in.shape.packed() ? 1 : 2;
  const auto errors = on_ranks(ranks, [&](const Transport& at) {
    const Sharding sharding(std::span(&attention, 1), in.forward(), at, how);
    const auto mine = sharding.of(at.rank), keys = sharding.keys_of(at.rank);
    Copies copies(where, at.rank);
    const Placed q = sliced(in.q.tensor, mine, q_rows, true, layout),
                 k = sliced(in.k.tensor, keys, q_rows, true, layout),
                 v = sliced(in.v.tensor, keys, q_rows, true, layout),
                 o = sliced(out.o.tensor, mine, q_rows, false, layout),
                 lse = sliced(out.lse.tensor, mine, lse_rows, false),
                 max = sliced(out.max.tensor, mine, lse_rows, false);
    Forward call = in.forward();
    call.q = q.tensor;
    call.k = k.tensor;
    call.v = v.tensor;
    call.o = o.tensor;
    call.lse = lse.tensor;
    call.max = max.tensor;
    copy_inputs(call, copies);
    call.captures = copies.captures(attention);
    attention.run(call, {.executor = {.workers = 1}, .sharding = sharding});
    copies.back();
    copy_rows(out.o.tensor, mine, q_rows, o.tensor, true);
    copy_rows(out.lse.tensor, mine, lse_rows, lse.tensor, true);
    copy_rows(out.max.tensor, mine, lse_rows, max.tensor, true);
  });
  if (!errors.empty()) throw Error(errors.front());
  return out;
}

/// The first element whose bits differ, in words; empty: none.
inline std::string differs(const Results& a, const Results& b) {
  for (const auto& [name, x, y] : {std::tuple{"o", &a.o, &b.o}, {"lse", &a.lse, &b.lse}, {"max", &a.max, &b.max}}) {
    if (x->size == y->size && std::memcmp(x->memory.get(), y->memory.get(), x->size) == 0) continue;
    const auto left = elements(x->tensor), right = elements(y->tensor);
    if (left.size() != right.size()) return fmt::format("{}: sizes", name);
    for (std::size_t i = 0; i < left.size(); ++i)
      if (std::memcmp(&left[i], &right[i], sizeof left[i]) != 0)
        return fmt::format("{}[{}]: {} instead of {}", name, i, right[i], left[i]);
  }
  return {};
}

/// The largest difference, relative to 1 or to the number itself, whichever is larger.
inline double distance(const Tensor& a, const Tensor& b) {
  const auto left = elements(a), right = elements(b);
  double most = left.size() == right.size() ? 0 : 1e30;
  for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (left[i] == right[i] || (std::isnan(left[i]) && std::isnan(right[i]))) continue;
    most = std::max(most, std::abs(left[i] - right[i]) / std::max(1.0, std::abs(left[i])));
    if (std::isnan(left[i]) != std::isnan(right[i])) most = 1e30;
  }
  return most;
}

struct Gradients {
  Placed dq, dk, dv;
  std::vector<Placed> captured;
};
inline Gradients gradients_for(const Inputs& in, std::span<const Tensor> captures) {
  const auto like = [](const Tensor& t, DType type) {
    return place(type, std::span(t.shape).first(static_cast<std::size_t>(t.rank)));
  };
  Gradients out{
      like(in.q.tensor, in.shape.dtype), like(in.k.tensor, in.shape.dtype), like(in.v.tensor, in.shape.dtype), {}};
  for (const Tensor& t : captures) out.captured.push_back(like(t, DType::f32));
  return out;
}

struct HowBackward {
  bool results = false, sum_captured = true;
  Where where{};
};

/// Binds copies of what the attention captures, and asks for the gradients of these captures.
inline std::vector<Placed> copy_inputs(Backward& call, Copies& copies, const Attention& attention,
                                       std::span<const Tensor> captures, std::span<const Placed> given = {}) {
  for (Tensor* t :
       {&call.q, &call.k, &call.v, &call.grad_o, &call.grad_lse, &call.o, &call.lse, &call.dq, &call.dk, &call.dv})
    *t = copies(*t);
  call.captures = copies.captures(attention);
  const std::vector<Tensor> traced = compiler::trace(attention).slots.captures;
  std::vector<Placed> into(given.begin(), given.end());
  for (std::size_t i = 0; i < captures.size(); ++i) {
    const Tensor& t = captures[i];
    if (given.empty()) into.push_back(place(DType::f32, std::span(t.shape).first(static_cast<std::size_t>(t.rank))));
    const auto slot = static_cast<int>(std::ranges::find(traced, t) - traced.begin());
    call.captured.push_back({.into = copies(into[i].tensor), .slot = slot});
  }
  return into;
}

inline Gradients alone(const Attention& attention, const Inputs& in, std::span<const Tensor> captures,
                       HowBackward how = {}) {
  Gradients out = gradients_for(in, captures);
  Backward call = in.backward();
  const Results forward = alone(attention, in, how.where);
  if (how.results) call.o = forward.o.tensor, call.lse = forward.lse.tensor;
  call.dq = out.dq.tensor;
  call.dk = out.dk.tensor;
  call.dv = out.dv.tensor;
  Copies copies(how.where, 0);
  copy_inputs(call, copies, attention, captures, out.captured);
  attention.backward(call);
  copies.back();
  return out;
}

/// `ranks`: the captured gradients of each, which are alike if they are summed.
inline Gradients together(const Attention& attention, const Inputs& in, std::span<const Tensor> captures, int count,
                          const How& how, HowBackward back = {}, std::vector<std::vector<Placed>>* by_rank = nullptr,
                          std::vector<Transport> ranks = {}) {
  if (ranks.empty()) ranks = threads(count, 60);
  Gradients out = gradients_for(in, captures);
  const Results forward = alone(attention, in, back.where);
  const std::size_t rows = in.shape.packed() ? 0 : 2, lse_rows = in.shape.packed() ? 1 : 2;
  if (by_rank) by_rank->resize(static_cast<std::size_t>(count));
  const auto errors = on_ranks(ranks, [&](const Transport& at) {
    const Sharding sharding(std::span(&attention, 1), in.forward(), at, how);
    const auto mine = sharding.of(at.rank), keys = sharding.keys_of(at.rank);
    Backward call = in.backward();
    const Placed q = sliced(in.q.tensor, mine, rows, true), k = sliced(in.k.tensor, keys, rows, true),
                 v = sliced(in.v.tensor, keys, rows, true), grad_o = sliced(in.grad_o.tensor, mine, rows, true),
                 o = sliced(forward.o.tensor, mine, rows, true), lse = sliced(forward.lse.tensor, mine, lse_rows, true),
                 dq = sliced(out.dq.tensor, mine, rows, false), dk = sliced(out.dk.tensor, keys, rows, false),
                 dv = sliced(out.dv.tensor, keys, rows, false);
    std::optional<Placed> grad_lse;
    if (call.grad_lse.given()) call.grad_lse = grad_lse.emplace(sliced(call.grad_lse, mine, lse_rows, true)).tensor;
    call.q = q.tensor;
    call.k = k.tensor;
    call.v = v.tensor;
    call.grad_o = grad_o.tensor;
    if (back.results) call.o = o.tensor, call.lse = lse.tensor;
    call.dq = dq.tensor;
    call.dk = dk.tensor;
    call.dv = dv.tensor;
    Copies copies(back.where, at.rank);
    const std::vector<Placed> into = copy_inputs(call, copies, attention, captures);
    call.sum_captured = back.sum_captured;
    attention.backward(call, {.executor = {.workers = 1}, .sharding = sharding});
    copies.back();
    copy_rows(out.dq.tensor, mine, rows, dq.tensor, true);
    copy_rows(out.dk.tensor, keys, rows, dk.tensor, true);
    copy_rows(out.dv.tensor, keys, rows, dv.tensor, true);
    if (by_rank) (*by_rank)[static_cast<std::size_t>(at.rank)] = into;
    if (at.rank == 0) out.captured = into;
  });
  if (!errors.empty()) throw Error(errors.front());
  return out;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const auto left = elements(a), right = elements(b);
  return std::ranges::equal(std::as_bytes(std::span(left)), std::as_bytes(std::span(right)));
}

}  // namespace attune::tests::ranks
