// runtime/engines/cover/summary.cpp — minima and maxima of blocks of a tensor at several scales, and runs of equal
// elements
#include "runtime/engines/cover/tiles.h"

#include <algorithm>
#include <array>
#include <limits>

#include "runtime/engines/call.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

using Of = compiler::Summary::Of;

/// Elements of one scale that make a block of the next.
constexpr std::int64_t block = 16;
constexpr std::int32_t int_min = std::numeric_limits<std::int32_t>::min(),
                       int_max = std::numeric_limits<std::int32_t>::max();

bool wants_runs(const compiler::Summary& s) { return s.of != Of::Least && s.of != Of::Greatest; }

/// Splits positions first .. last into the largest blocks possible; visits (scale, index) of each.
template <class Visitor>
void each_block(std::int64_t first, std::int64_t last, std::int64_t extent, const Visitor& visit) {
  for (std::size_t scale = 0; first <= last; ++scale) {
    const bool top = extent <= block;
    while (first <= last && (top || first % block != 0)) visit(scale, first++);
    // A block that the end of the tensor cuts short counts as whole.
    while (first <= last && (last + 1) % block != 0 && last + 1 != extent) visit(scale, last--);
    if (first > last) return;
    first /= block;
    last /= block;
    extent = (extent + block - 1) / block;
  }
}

}  // namespace

/// A tensor as a stack of matrices (a vector is a matrix of one row). Only Ints and Bools are summarised.
struct Summaries::Data {
  std::int64_t planes = 1, rows = 1, columns = 1;
  std::vector<std::int64_t> extents;
  std::vector<std::int32_t> copied;        ///< empty if the tensor is a plain array of i32
  std::span<const std::int32_t> elements;  ///< row-major

  /// grids[i][j] has blocks of 16^i rows by 16^j columns, plane after plane; nothing at [0][0].
  struct Grid {
    std::int64_t rows = 0, columns = 0;
    std::vector<std::int32_t> least, most;
  };
  std::vector<std::vector<Grid>> grids;

  struct Line {
    bool sorted = true;
    std::vector<std::int32_t> starts;  ///< where runs of equal elements begin, ascending
  };
  std::vector<Line> lines;  ///< one per row

  Data(const Tensor& t, bool blocks, bool runs) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(t.rank); ++i) extents.push_back(t.shape[i]);
    if (t.rank >= 1) columns = extents.back();
    if (t.rank >= 2) rows = extents[extents.size() - 2];
    for (std::size_t i = 0; i + 2 < extents.size(); ++i) planes *= extents[i];
    gather(t);
    if (elements.empty()) return;
    if (blocks) make_grids();
    if (runs) make_lines();
  }

  void gather(const Tensor& t) {
    const std::int64_t size = planes * rows * columns;
    std::int64_t stride = 1;
    bool plain = t.dtype == DType::i32;
    for (std::size_t d = extents.size(); d-- > 0; stride *= extents[d])
      plain &= extents[d] == 1 || t.strides[d] == stride;
    if (plain) {
      elements = {static_cast<const std::int32_t*>(t.data), static_cast<std::size_t>(size)};
      return;
    }
    copied.reserve(static_cast<std::size_t>(size));
    Tensor::Extents at{};
    for (std::int64_t i = 0; i < size; ++i) {
      copied.push_back(static_cast<std::int32_t>(load(t, offset(t, at[0], at[1], at[2], at[3]))));
      for (std::size_t d = extents.size(); d-- > 0 && ++at[d] == extents[d];) at[d] = 0;
    }
    elements = copied;
  }

  void make_grids() {
    const auto up = [](std::int64_t n) { return (n + block - 1) / block; };
    std::int64_t r = rows;
    for (std::size_t i = 0;; ++i, r = up(r)) {
      grids.emplace_back();
      std::int64_t c = columns;
      for (std::size_t j = 0;; ++j, c = up(c)) {
        grids[i].push_back({r, c, {}, {}});
        if (i + j > 0) merge(i, j);
        if (c <= block) break;
      }
      if (r <= block) break;
    }
  }
  /// Merges along the columns where they have a finer scale, else along the rows.
  void merge(std::size_t i, std::size_t j) {
    Grid& grid = grids[i][j];
    const Grid& finer = j > 0 ? grids[i][j - 1] : grids[i - 1][j];
    const std::int32_t *least = finer.least.data(), *most = finer.most.data();
    if (finer.least.empty()) least = most = elements.data();
    const auto size = static_cast<std::size_t>(planes * grid.rows * grid.columns);
    grid.least.assign(size, int_max);
    grid.most.assign(size, int_min);
    for (std::int64_t p = 0, from = 0; p < planes; ++p)
      for (std::int64_t r = 0; r < finer.rows; ++r)
        for (std::int64_t c = 0; c < finer.columns; ++c, ++from) {
          const std::int64_t into = (p * grid.rows + (j > 0 ? r : r / block)) * grid.columns + (j > 0 ? c / block : c);
          std::int32_t &low = grid.least[static_cast<std::size_t>(into)],
                       &high = grid.most[static_cast<std::size_t>(into)];
          low = std::min(low, least[from]);
          high = std::max(high, most[from]);
        }
  }

  void make_lines() {
    lines.resize(static_cast<std::size_t>(planes * rows));
    const std::int32_t* v = elements.data();
    for (Line& line : lines) {
      line.starts.push_back(0);
      for (std::int64_t c = 1; c < columns; ++c) {
        if (v[c] == v[c - 1]) continue;
        line.sorted &= v[c] > v[c - 1];
        line.starts.push_back(static_cast<std::int32_t>(c));
      }
      v += columns;
    }
  }

  std::int64_t clamped(std::int64_t i, std::size_t dimension) const {
    return std::clamp<std::int64_t>(i, 0, extents[dimension] - 1);
  }

  /// The least or greatest element of a box: `pairs` has the first and last index of each dimension. Planes are few, so
  /// they are walked one by one.
  double box(std::span<const std::int32_t> pairs, bool least) const {
    if (elements.empty()) return least ? int_min : int_max;
    std::array<std::int64_t, Tensor::max_rank> from{}, to{};
    const std::size_t rank = extents.size(), skip = Tensor::max_rank - rank;
    for (std::size_t d = 0; d < rank; ++d) {
      from[skip + d] = clamped(pairs[2 * d], d);
      to[skip + d] = clamped(pairs[2 * d + 1], d);
    }
    const std::int64_t outer = rank >= 3 ? extents[rank - 3] : 1;
    std::int32_t found = least ? int_max : int_min;
    for (std::int64_t a = from[0]; a <= to[0]; ++a)
      for (std::int64_t b = from[1]; b <= to[1]; ++b)
        each_block(from[2], to[2], rows, [&](std::size_t i, std::int64_t r) {
          each_block(from[3], to[3], columns, [&](std::size_t j, std::int64_t c) {
            const Grid& grid = grids[i][j];
            const auto at = static_cast<std::size_t>(((a * outer + b) * grid.rows + r) * grid.columns + c);
            if (least)
              found = std::min(found, grid.least.empty() ? elements[at] : grid.least[at]);
            else
              found = std::max(found, grid.most.empty() ? elements[at] : grid.most[at]);
          });
        });
    return found;
  }

  /// Null for a tensor without elements.
  const Line* line(std::span<const std::int32_t> index) const {
    if (elements.empty()) return nullptr;
    std::int64_t at = 0;
    for (std::size_t d = 0; d + 1 < extents.size(); ++d) at = at * extents[d] + clamped(index[d], d);
    return &lines[static_cast<std::size_t>(at)];
  }

  double run(std::span<const std::int32_t> index, bool first) const {
    const Line* l = line(index);
    if (!l) return first ? 0 : compiler::after_all;
    const auto at = static_cast<std::int32_t>(clamped(index.back(), extents.size() - 1));
    const auto next = std::upper_bound(l->starts.begin(), l->starts.end(), at);
    if (first) return *(next - 1);
    return next == l->starts.end() ? compiler::after_all : *next - 1;
  }
};

Summaries::Summaries(std::span<const Tensor> captures, std::span<const compiler::Summary> wanted) {
  data_.resize(captures.size());
  for (std::uint32_t slot = 0; slot < captures.size(); ++slot) {
    const auto any = [&](bool runs) {
      return std::any_of(wanted.begin(), wanted.end(),
                         [&](const compiler::Summary& w) { return w.capture == slot && wants_runs(w) == runs; });
    };
    if (any(false) || any(true)) data_[slot] = std::make_shared<const Data>(captures[slot], any(false), any(true));
  }
  read_ = [elements = reader(captures), data = data_, asked = std::vector(wanted.begin(), wanted.end())](
              std::uint32_t slot, std::span<const std::int32_t> index) -> double {
    if (slot < data.size()) return elements(slot, index);
    const compiler::Summary& w = asked[slot - data.size()];
    const Data& d = *data[w.capture];
    switch (w.of) {
      case Of::Least: return d.box(index, true);
      case Of::Greatest: return d.box(index, false);
      case Of::Sorted: return !d.line(index) || d.line(index)->sorted;
      case Of::RunFirst: return d.run(index, true);
      case Of::RunLast: return d.run(index, false);
    }
    return 0;
  };
}

Summaries::~Summaries() = default;
Summaries::Summaries(Summaries&&) noexcept = default;

}  // namespace attune::runtime
