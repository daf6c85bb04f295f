// compiler/requirements.cpp — what a call requires of its tensors (rank, types, extents, memory that does not overlap),
// and the message for each
#include "compiler/requirements.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

namespace {

/// True if each stride steps over all that is within, as in contiguous tensors.
bool is_nested(const Tensor& t) {
  std::int64_t within = 1;
  for (auto i = static_cast<std::size_t>(t.rank); i-- > 0;) {
    if (t.shape[i] == 1) continue;
    if (t.strides[i] < within || __builtin_mul_overflow(t.strides[i], t.shape[i], &within)) return false;
  }
  return true;
}

/// Refuses an output in which two elements certainly share memory.
void check_disjoint(const Named& t) {
  if (is_nested(*t)) return;
  double reach = 1;  // a double: strides may be anything, so their sums may overflow integers
  std::string clash;
  for (std::size_t i = 0; i < static_cast<std::size_t>(t->rank); ++i) {
    if (t->shape[i] < 2) continue;
    reach += static_cast<double>(t->shape[i] - 1) * std::abs(static_cast<double>(t->strides[i]));
    if (t->strides[i] == 0) clash = fmt::format("the stride of dimension {} is 0", i);
    for (std::size_t j = 0; j < i; ++j)
      if (t->shape[j] > 1 && (t->strides[i] == t->strides[j] || t->strides[i] == -t->strides[j]))
        clash = fmt::format("dimensions {} and {} have the same stride {}", j, i, t->strides[i]);
  }
  if (t->size() == 0) return;
  if (clash.empty() && reach < static_cast<double>(t->size()))
    clash = fmt::format("its {} elements share the memory of {}", t->size(), reach);
  if (!clash.empty())
    throw refuse("tensor-overlap", fmt::format("elements of {} overlap in memory", t.name()),
                 fmt::format("{}, and {}", description(t), clash), "give each element its own place in memory");
}

[[noreturn]] void refuse_alias(const Named& out, const Named& other) {
  const bool same = other->data == out->data;
  throw refuse("tensor-alias",
               fmt::format("{} and {} {}", out.name(), other.name(), same ? "share memory" : "overlap in memory"),
               fmt::format("both {}, and {} is written",
                           same ? "start at the same address" : "have elements at the same addresses", out.name()),
               fmt::format("give {} memory of its own", out.name()));
}

/// Refuses outputs that share memory with another tensor of the call.
void check_alias(std::span<const Named> outputs, std::span<const Named> inputs) {
  std::array<AddressRange, 8> few;  // without an allocation
  std::vector<AddressRange> many(outputs.size() > few.size() ? outputs.size() : 0);
  const auto written = many.empty() ? std::span(few).first(outputs.size()) : std::span(many);
  const auto check = [&](std::size_t count, const Named& other, const AddressRange& range) {
    for (std::size_t i = 0; i < count; ++i)
      if (written[i].meets(range) && outputs[i]->given() && outputs[i].tensor != other.tensor &&
          share_elements(*outputs[i], *other))
        refuse_alias(outputs[i], other);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]->given()) continue;
    written[i] = address_range(*outputs[i]);
    check(i, outputs[i], written[i]);
  }
  for (const Named& input : inputs)
    if (input->given()) check(outputs.size(), input, address_range(*input));
}

}  // namespace

std::string Named::name() const { return captured ? fmt::format("capture `{}`", called) : std::string(called); }

std::string description(const Named& t) { return fmt::format("{} is {}", t.name(), t->describe()); }

std::string place(const Device& d) {
  return d.kind == Device::Kind::cpu ? std::string("on the host") : fmt::format("on cuda:{}", d.index);
}

void check_type(const Named& t, const Types& types) {
  if (types.allowed & Types::of({t->dtype})) return;
  throw refuse(std::string(types.code.text), fmt::format("{} holds {}", t.name(), name_of(t->dtype)),
               fmt::format("{}, and {}", description(t), types.why), std::string(types.fix));
}

void check_rank(const Named& t, const Dimensions& wanted) {
  if (t->rank == wanted.rank) return;
  throw refuse("tensor-rank", fmt::format("{} has {} dimensions instead of {}", t.name(), t->rank, wanted.rank),
               fmt::format("{}, and it should be {}", description(t), wanted.layout), std::string(wanted.fix));
}

void check_shared(const Named& a, const Named& b, const Shared& extent) {
  if (a->shape[extent.dimension] == b->shape[extent.dimension]) return;
  throw refuse(std::string(extent.code.text), std::string(extent.problem),
               fmt::format("{} and {}", description(a), description(b)), std::string(extent.fix));
}

void check_extents(std::span<const std::int64_t> shape, DType dtype) {
  std::uint64_t bits = 0;
  for (const std::int64_t extent : shape) bits |= static_cast<std::uint64_t>(extent);
  if (shape.size() <= Tensor::max_rank && bits < 1u << 15) return;  // the common case: fewer than 2^60 elements
  const auto has_shape = [&] { return fmt::format("a tensor has the shape [{}]", fmt::join(shape, ", ")); };
  if (shape.size() > Tensor::max_rank)
    throw Error("bad-rank", has_shape(), {},
                fmt::format("it has {} dimensions, and a tensor has at most {}", shape.size(), Tensor::max_rank),
                "merge or index away some dimensions before you hand it over");
  std::int64_t least = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0)
      throw Error("bad-extent", has_shape(), {}, fmt::format("an extent is {}, and extents are 0 or more", extent),
                  "pass the extents of the data");
    least = std::min(least, extent);
  }
  if (least == 0) return;
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  std::int64_t bytes = element;
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes))
      throw Error("bad-extent", has_shape(), {},
                  fmt::format("it would hold more than {} elements of {}, beyond 2^63 bytes",
                              std::numeric_limits<std::int64_t>::max() / element, name_of(dtype)),
                  "pass the extents of the data");
}

void check_alone(const Named& t) {
  if (!t->given())
    throw refuse("tensor-missing", t.name() + " is missing", "the call needs it, and it was left out",
                 "pass a tensor for " + t.name());
  if (t->rank > Tensor::max_rank)
    throw refuse("bad-rank", fmt::format("{} has {} dimensions", t.name(), t->rank),
                 fmt::format("a tensor has at most {}", Tensor::max_rank), "merge or index away some dimensions");
  try {
    check_extents(std::span(t->shape).first(static_cast<std::size_t>(t->rank)), t->dtype);
  } catch (const Error& e) {
    throw refuse(e.code, t.name() + ": " + e.problem, e.why, e.fix);
  }
  if (!t->data && t->size() > 0)
    throw refuse("tensor-null", t.name() + " has no memory",
                 fmt::format("{}, and its data pointer is null", description(t)), "point it at its elements");
}

void check_one(const Named& t, const Device& device, std::string_view q) {
  check_alone(t);
  if (t->device != device)
    throw refuse("tensor-device", fmt::format("{} is on another device than {}", t.name(), q),
                 fmt::format("{} is {} and {} is {}", q, place(device), t.name(), place(t->device)),
                 "move all tensors of a call, captures too, to one device");
}

void check_shape(const Named& t, std::span<const std::int64_t> shape, std::string_view reason) {
  const auto have = std::span(t->shape).first(static_cast<std::size_t>(t->rank));
  if (std::equal(have.begin(), have.end(), shape.begin(), shape.end())) return;
  throw refuse("tensor-shape", fmt::format("{} has the wrong shape", t.name()),
               fmt::format("{}; {}, so it must be [{}]", description(t), reason, fmt::join(shape, ", ")),
               fmt::format("pass {} as [{}]", t.name(), fmt::join(shape, ", ")));
}

void check_shape(const Named& t, std::span<const std::int64_t> shape, std::initializer_list<Named> from) {
  const auto have = std::span(t->shape).first(static_cast<std::size_t>(t->rank));
  if (std::equal(have.begin(), have.end(), shape.begin(), shape.end())) return;  // the common case builds no message
  std::string reason;
  for (const Named& of : from) reason += (reason.empty() ? "" : " and ") + description(of);
  check_shape(t, shape, reason);
}

void check_outputs(std::span<const Named> outputs, std::span<const Named> inputs) {
  for (const Named& t : outputs)
    if (t->given()) check_disjoint(t);
  check_alias(outputs, inputs);
}

void check_in_place(const Named& out, const Named& before) {
  if (before->data == out->data || !before->given() || !out->given() || !share_elements(*out, *before)) return;
  throw refuse("tensor-alias", fmt::format("{} and {} overlap in memory", out.name(), before.name()),
               fmt::format("writing {} would overwrite elements of {} that are read later", out.name(), before.name()),
               fmt::format("pass one tensor for both, or give {} memory of its own", out.name()));
}

}  // namespace attune::compiler
