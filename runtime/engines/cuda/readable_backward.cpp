// runtime/engines/cuda/readable_backward.cpp — a backward whose grad_o every kernel can read, copied where it is not
#include "runtime/engines/cuda/readable_backward.h"

#include "runtime/engines/cuda/combine.h"
#include "runtime/engines/cuda/maps.h"

namespace attune::runtime::cuda {

ReadableBackward::ReadableBackward(const Call& of) : of_(of) {
  const Backward& call = of.backward();
  const Tensor& given = call.grad_o;
  if (has_boxes(given)) return;
  const auto shape = std::span(given.shape).first(static_cast<std::size_t>(given.rank));
  const Tensor rows(nullptr, given.dtype, shape, {}, given.device);
  if (!has_boxes(rows) || !has_boxes(call.q) || !has_boxes(call.k) || !has_boxes(call.v)) return;
  room_.take<std::byte>(rows.size() * static_cast<std::int64_t>(size_of(rows.dtype)));
  backward_ = call;
  backward_->grad_o = rows;
  readable_.emplace(of);
  readable_->what = *backward_;
}

void ReadableBackward::load(const Facts& device, cu::Stream stream) const {
  if (readable_) load_copy(device, stream);
}

std::byte* ReadableBackward::copy(const Facts& device, std::byte* memory, cu::Stream stream) {
  if (!readable_) return memory;
  backward_->grad_o.data = memory;
  copy_elements(device, of_.backward().grad_o, backward_->grad_o, stream);
  return memory + bytes();
}

}  // namespace attune::runtime::cuda
