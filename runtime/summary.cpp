// runtime/summary.cpp — blocks of least and greatest elements, runs of equal ones
#include "runtime/summary.h"

#include <algorithm>
#include <limits>

#include "runtime/oracle.h"
#include "runtime/tensor.h"

namespace attune::runtime {
namespace {

constexpr std::int64_t block = 64;

struct Ends {
  double least = std::numeric_limits<double>::infinity(), most = -std::numeric_limits<double>::infinity();
  void take(double x) {
    least = std::min(least, x);
    most = std::max(most, x);
  }
  void take(const Ends& e) {
    least = std::min(least, e.least);
    most = std::max(most, e.most);
  }
};

}  // namespace

/// A tensor as a stack of matrices (a vector is a matrix of one row), row-major copies of its values.
struct Summaries::Data {
  std::int64_t planes = 1, rows = 1, columns = 1;
  std::vector<std::int64_t> extents;
  std::vector<double> values;
  std::vector<Ends> blocks;  ///< of `block` columns of one row
  struct Line {
    bool sorted = true;
    std::vector<std::int32_t> starts;  ///< where runs of equal elements begin, ascending
  };
  std::vector<Line> lines;  ///< one a row, if runs are wanted

  std::int64_t row_blocks() const { return (columns + block - 1) / block; }

  explicit Data(const Tensor& t, bool runs) {
    for (int i = 0; i < t.rank; ++i) extents.push_back(t.shape[static_cast<std::size_t>(i)]);
    if (t.rank >= 1) columns = extents.back();
    if (t.rank >= 2) rows = extents[extents.size() - 2];
    for (int i = 0; i + 2 < t.rank; ++i) planes *= extents[static_cast<std::size_t>(i)];
    const std::int64_t size = planes * rows * columns;
    values.reserve(static_cast<std::size_t>(size));
    std::vector<std::int64_t> at(extents.size());
    for (std::int64_t i = 0; i < size; ++i) {
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < at.size(); ++d) offset += at[d] * t.strides[d];
      values.push_back(load(t, offset));
      for (std::size_t d = at.size(); d-- > 0 && ++at[d] == extents[d];) at[d] = 0;
    }
    blocks.resize(static_cast<std::size_t>(planes * rows * row_blocks()));
    for (std::int64_t line = 0; line < planes * rows; ++line)
      for (std::int64_t c = 0; c < columns; ++c)
        blocks[static_cast<std::size_t>(line * row_blocks() + c / block)].take(
            values[static_cast<std::size_t>(line * columns + c)]);
    if (!runs) return;
    lines.resize(static_cast<std::size_t>(planes * rows));
    for (std::size_t line = 0; line < lines.size(); ++line) {
      const double* v = values.data() + line * static_cast<std::size_t>(columns);
      for (std::int64_t c = 0; c < columns; ++c) {
        if (c > 0 && v[c] < v[c - 1]) lines[line].sorted = false;
        if (c == 0 || v[c] != v[c - 1]) lines[line].starts.push_back(static_cast<std::int32_t>(c));
      }
    }
  }

  std::int64_t clamped(std::int64_t i, std::size_t dimension) const {
    return std::clamp<std::int64_t>(i, 0, extents[dimension] - 1);
  }

  /// Index pairs: first and last of each dimension. Planes are few: they are walked one by one.
  Ends box(std::span<const std::int32_t> pairs) const {
    std::array<std::int64_t, Tensor::max_rank> from{}, to{};
    const std::size_t rank = extents.size();
    const std::size_t skip = Tensor::max_rank - rank;
    for (std::size_t d = 0; d < rank; ++d) {
      from[skip + d] = clamped(pairs[2 * d], d);
      to[skip + d] = clamped(pairs[2 * d + 1], d);
    }
    const std::int64_t outer = rank >= 3 ? extents[rank - 3] : 1;
    Ends all;
    for (std::int64_t i = from[0]; i <= to[0]; ++i)
      for (std::int64_t j = from[1]; j <= to[1]; ++j)
        for (std::int64_t r = from[2]; r <= to[2]; ++r) across((i * outer + j) * rows + r, from[3], to[3], all);
    return all;
  }

  void across(std::int64_t line, std::int64_t from, std::int64_t to, Ends& all) const {
    const double* v = values.data() + line * columns;
    const Ends* b = blocks.data() + line * row_blocks();
    std::int64_t c = from;
    while (c <= to) {
      if (c % block == 0 && c + block - 1 <= to) {
        all.take(b[c / block]);
        c += block;
      } else {
        all.take(v[c++]);
      }
    }
  }

  const Line& line(std::span<const std::int32_t> index) const {
    std::int64_t at = 0;
    for (std::size_t d = 0; d + 1 < extents.size(); ++d) at = at * extents[d] + clamped(index[d], d);
    return lines[static_cast<std::size_t>(at)];
  }

  double run(std::span<const std::int32_t> index, bool first) const {
    const Line& l = line(index);
    const auto at = static_cast<std::int32_t>(clamped(index.back(), extents.size() - 1));
    const auto next = std::upper_bound(l.starts.begin(), l.starts.end(), at);
    if (first) return *(next - 1);
    return next == l.starts.end() ? compiler::after_all : *next - 1;
  }
};

Summaries::Summaries(std::span<const Tensor> captures, std::span<const compiler::Summary> wanted) {
  using Of = compiler::Summary::Of;
  data_.resize(captures.size());
  for (const compiler::Summary& w : wanted) {
    const bool runs = w.of == Of::Sorted || w.of == Of::RunFirst || w.of == Of::RunLast;
    auto& slot = data_[w.capture];
    if (!slot || (runs && slot->lines.empty())) slot = std::make_shared<const Data>(captures[w.capture], runs);
  }
  read_ = [elements = reader(captures), data = data_, asked = std::vector(wanted.begin(), wanted.end())](
              std::uint32_t slot, std::span<const std::int32_t> index) -> double {
    if (slot < data.size()) return elements(slot, index);
    const compiler::Summary& w = asked[slot - data.size()];
    const Data& d = *data[w.capture];
    switch (w.of) {
      case Of::Least: return d.box(index).least;
      case Of::Greatest: return d.box(index).most;
      case Of::Sorted: return d.line(index).sorted;
      case Of::RunFirst: return d.run(index, true);
      case Of::RunLast: return d.run(index, false);
    }
    return 0;
  };
}

Summaries::~Summaries() = default;
Summaries::Summaries(Summaries&&) noexcept = default;

}  // namespace attune::runtime
