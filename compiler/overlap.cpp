// compiler/overlap.cpp — whether two tensors have elements in the same memory
#include "compiler/overlap.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace attune::compiler {
namespace {

struct Axis {
  std::int64_t stride, count;  ///< in bytes; elements along the dimension
  bool operator==(const Axis&) const = default;
};

/// The memory of a tensor, read upwards: dimensions of more than one element, widest stride first.
struct Span {
  std::int64_t lowest = 0, reach = 0;  ///< addresses of the first byte, and from there to the last element's
  std::vector<Axis> steps;
};

/// True if a tensor spans more bytes than any memory has: strides may be anything, and sums of them may overflow.
bool beyond_memory(const Tensor& t) {
  double bytes = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(t.rank); ++i)
    bytes += std::abs(static_cast<double>(t.strides[i])) * static_cast<double>(t.shape[i]) * 8;
  return bytes > 0x1p60;
}

Span span_of(const Tensor& t) {
  Span out{.lowest = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data)), .steps = {}};
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  for (std::size_t i = 0; i < static_cast<std::size_t>(t.rank); ++i) {
    if (t.shape[i] < 2) continue;
    const std::int64_t stride = t.strides[i] * size, far = (t.shape[i] - 1) * stride;
    if (far < 0) out.lowest += far;
    out.reach += std::abs(far);
    out.steps.push_back({std::abs(stride), t.shape[i]});
  }
  std::ranges::sort(out.steps, [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  return out;
}

/// True if differences of two elements' places along these dimensions can sum up to `distance`; `reach`: the largest
/// sum.
bool meets(const std::vector<Axis>& steps, std::size_t i, std::int64_t distance, std::int64_t reach) {
  if (i == steps.size()) return distance == 0;
  const auto [stride, count] = steps[i];
  if (stride == 0) return meets(steps, i + 1, distance, reach);
  const std::int64_t rest = reach - (count - 1) * stride;
  // Truncated towards 0, so that one more on either side may be tried, and is refused below.
  const std::int64_t first = std::max((distance - rest) / stride - 1, 1 - count),
                     last = std::min((distance + rest) / stride + 1, count - 1);
  for (std::int64_t steps_apart = first; steps_apart <= last; ++steps_apart) {
    const std::int64_t left = distance - steps_apart * stride;
    if (std::abs(left) <= rest && meets(steps, i + 1, left, rest)) return true;
  }
  return false;
}

}  // namespace

bool share_elements(const Tensor& a, const Tensor& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  if (beyond_memory(a) || beyond_memory(b)) return true;
  const Span first = span_of(a), second = span_of(b);
  const auto size_a = static_cast<std::int64_t>(size_of(a.dtype)), size_b = static_cast<std::int64_t>(size_of(b.dtype));
  if (first.lowest + first.reach + size_a <= second.lowest || second.lowest + second.reach + size_b <= first.lowest)
    return false;
  const std::int64_t distance = second.lowest - first.lowest;
  if (size_a != size_b || first.steps != second.steps || distance % size_a != 0) return true;
  return meets(first.steps, 0, distance, first.reach);
}

}  // namespace attune::compiler
