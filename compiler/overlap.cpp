// compiler/overlap.cpp — whether two tensors have elements in the same memory
#include "compiler/overlap.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

namespace attune::compiler {
namespace {

/// Blocks of bytes without gaps, at begin + the sums of strides[i] * (0 .. counts[i]).
struct Blocks {
  std::int64_t begin = 0, bytes = 0;
  std::size_t axes = 0;
  std::array<std::int64_t, Tensor::max_rank> strides{}, counts{};  ///< narrowest stride first
};

Blocks blocks_of(const Tensor& t, std::int64_t begin) {
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  std::array<std::pair<std::int64_t, std::int64_t>, Tensor::max_rank> all;
  std::size_t axes = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(t.rank); ++i)
    if (t.shape[i] > 1 && t.strides[i] != 0) all[axes++] = {std::abs(t.strides[i]) * size, t.shape[i] - 1};
  std::sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(axes));
  Blocks out{.begin = begin, .bytes = size};
  for (std::size_t i = 0; i < axes; ++i) {
    const auto [stride, count] = all[i];
    if (out.axes == 0 && stride <= out.bytes) {
      out.bytes += stride * count;
    } else {
      out.strides[out.axes] = stride;
      out.counts[out.axes++] = count;
    }
  }
  return out;
}

/// Whether sums of strides[i] * x, 0 <= x <= counts[i], reach an interval.
class Sums {
 public:
  void add(std::int64_t stride, std::int64_t count) {
    const auto same = std::find(strides_.begin(), strides_.begin() + static_cast<std::ptrdiff_t>(axes_), stride);
    const auto at = static_cast<std::size_t>(same - strides_.begin());
    if (at == axes_) strides_[axes_++] = stride;
    counts_[at] += count;
  }

  /// True, too, if it takes too many steps to decide.
  bool reach(std::int64_t first, std::int64_t last) {
    for (std::size_t i = 0; i < axes_; ++i)
      for (std::size_t j = i; j > 0 && strides_[j] < strides_[j - 1]; --j) {
        std::swap(strides_[j], strides_[j - 1]);
        std::swap(counts_[j], counts_[j - 1]);
      }
    for (std::size_t i = 0; i < axes_; ++i) {
      reaches_[i + 1] = reaches_[i] + strides_[i] * counts_[i];
      divisors_[i + 1] = std::gcd(divisors_[i], strides_[i]);
    }
    return reach(axes_, first, last);
  }

 private:
  /// By the `axes` narrowest strides.
  bool reach(std::size_t axes, std::int64_t first, std::int64_t last) {
    first = std::max<std::int64_t>(first, 0);
    last = std::min(last, reaches_[axes]);
    if (first > last) return false;
    if (axes == 0 || ++steps_ > most_steps) return true;
    // All sums are multiples of the greatest common divisor.
    if (last / divisors_[axes] * divisors_[axes] < first) return false;
    if (axes == 1) return true;
    const std::int64_t stride = strides_[axes - 1], rest = reaches_[axes - 1];
    const std::int64_t least = std::max<std::int64_t>(0, (first - rest + stride - 1) / stride),
                       most = std::min(counts_[axes - 1], last / stride);
    for (std::int64_t x = least; x <= most; ++x)
      if (reach(axes - 1, first - x * stride, last - x * stride)) return true;
    return false;
  }

  static constexpr int most_steps = 1 << 20;
  static constexpr std::size_t most_axes = 2 * Tensor::max_rank;
  std::size_t axes_ = 0;
  int steps_ = 0;
  std::array<std::int64_t, most_axes> strides_{}, counts_{};
  std::array<std::int64_t, most_axes + 1> reaches_{}, divisors_{};  ///< of the i narrowest
};

}  // namespace

bool share_elements(const Tensor& a, const Tensor& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  const AddressRange first = address_range(a), second = address_range(b);
  if (!first.meets(second)) return false;
  if (!first.known || !second.known) return true;
  const Blocks in_a = blocks_of(a, first.begin), in_b = blocks_of(b, second.begin);
  // Blocks of a and b meet if b's block starts less than a's bytes after a's block, or less than b's bytes before it.
  // b's counts are reversed, so that all terms are positive.
  Sums sums;
  std::int64_t distance = in_b.begin - in_a.begin;
  for (std::size_t i = 0; i < in_a.axes; ++i) sums.add(in_a.strides[i], in_a.counts[i]);
  for (std::size_t i = 0; i < in_b.axes; ++i) {
    sums.add(in_b.strides[i], in_b.counts[i]);
    distance += in_b.strides[i] * in_b.counts[i];
  }
  return sums.reach(distance - in_a.bytes + 1, distance + in_b.bytes - 1);
}

}  // namespace attune::compiler
