// codegen/llvm/lanes.cpp — operations across lanes of several registers: transposes, and many lane sums at once
#include "codegen/llvm/lanes.h"

#include <numeric>
#include <utility>

namespace attune::codegen {
namespace {

// Each shuffle here is one x86 instruction: it stays within 128-bit quarters, or moves whole quarters.

/// Picks lanes 4g + pick[0..3] in each quarter g; picks of 4 and more take from `b`.
Val within_quarters(Val a, Val b, const int (&pick)[4]) {
  const int n = static_cast<int>(a.lanes());
  std::vector<int> lanes;
  for (int g = 0; g < n; g += 4)
    for (const int p : pick) lanes.push_back(p < 4 ? g + p : n + g + p - 4);
  return codegen::shuffle(a, b, lanes);
}

/// Every other quarter of a, then of b, starting with the first or the second.
Val every_other_quarter(Val a, Val b, int first) {
  const int n = static_cast<int>(a.lanes());
  std::vector<int> lanes;
  for (int quarter = first; quarter < 2 * n / 4; quarter += 2)
    for (int i = 0; i < 4; ++i) lanes.push_back(4 * quarter + i);
  return codegen::shuffle(a, b, lanes);
}

/// The parts concatenated.
Val joined(const std::vector<Val>& parts) {
  if (parts.size() == 1) return parts[0];
  const auto middle = parts.begin() + static_cast<std::ptrdiff_t>(parts.size() / 2);
  const Val low = joined({parts.begin(), middle}), high = joined({middle, parts.end()});
  std::vector<int> lanes(2 * low.lanes());
  std::iota(lanes.begin(), lanes.end(), 0);
  return codegen::shuffle(low, high, lanes);
}

}  // namespace

std::array<Val, 4> transposed(const std::vector<Val>& rows) {
  std::array<Val, 4> by_row;  // [i]: quarter q is row 4q + i
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<Val> quarters;
    for (std::size_t r = i; r < rows.size(); r += 4) quarters.push_back(rows[r]);
    by_row[i] = joined(quarters);
  }
  const Val low01 = within_quarters(by_row[0], by_row[1], {0, 4, 1, 5});
  const Val high01 = within_quarters(by_row[0], by_row[1], {2, 6, 3, 7});
  const Val low23 = within_quarters(by_row[2], by_row[3], {0, 4, 1, 5});
  const Val high23 = within_quarters(by_row[2], by_row[3], {2, 6, 3, 7});
  return {within_quarters(low01, low23, {0, 1, 4, 5}), within_quarters(low01, low23, {2, 3, 6, 7}),
          within_quarters(high01, high23, {0, 1, 4, 5}), within_quarters(high01, high23, {2, 3, 6, 7})};
}

Val sums_of_lanes(const std::vector<Val>& vectors) {
  std::vector<Val> sums = vectors;
  const auto halve = [&](auto evens, auto odds) {
    std::vector<Val> next;
    for (std::size_t i = 0; i < sums.size(); i += 2)
      next.push_back(evens(sums[i], sums[i + 1]) + odds(sums[i], sums[i + 1]));
    sums = std::move(next);
  };
  for (int level = 0; level < 2; ++level)
    halve(
        [](Val a, Val b) {
          return within_quarters(a, b, {0, 2, 4, 6});
        },
        [](Val a, Val b) {
          return within_quarters(a, b, {1, 3, 5, 7});
        });
  while (sums.size() > 1)
    halve([](Val a, Val b) { return every_other_quarter(a, b, 0); },
          [](Val a, Val b) { return every_other_quarter(a, b, 1); });
  return sums[0];
}

}  // namespace attune::codegen
