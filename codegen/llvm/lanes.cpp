// codegen/llvm/lanes.cpp — registers across each other: transposes, and sums of many at once
#include "codegen/llvm/lanes.h"

#include <utility>

namespace attune::codegen {
namespace {

// Each shuffle here is one instruction of x86: it stays within quarters of 128 bits, or moves whole ones.

/// Lanes 4g + pick[0..3] of each quarter g, where 4 and more are of `b`.
Val within_quarters(Val a, Val b, const int (&pick)[4]) {
  const int n = static_cast<int>(a.lanes());
  std::vector<int> lanes;
  for (int g = 0; g < n; g += 4)
    for (const int p : pick) lanes.push_back(p < 4 ? g + p : n + g + p - 4);
  return codegen::shuffle(a, b, lanes);
}

/// Every other quarter of a and then of b, from the first or the second on.
Val every_other_quarter(Val a, Val b, int first) {
  const int n = static_cast<int>(a.lanes());
  std::vector<int> lanes;
  for (int quarter = first; quarter < 2 * n / 4; quarter += 2)
    for (int i = 0; i < 4; ++i) lanes.push_back(4 * quarter + i);
  return codegen::shuffle(a, b, lanes);
}

/// Quarter j of vector i becomes quarter i of vector j.
std::vector<Val> transposed_quarters(const std::vector<Val>& all) {
  if (all.size() == 1) return all;
  std::vector<Val> halves[2], out;
  for (int odd = 0; odd < 2; ++odd) {
    for (std::size_t i = 0; i < all.size(); i += 2) halves[odd].push_back(every_other_quarter(all[i], all[i + 1], odd));
    halves[odd] = transposed_quarters(halves[odd]);
  }
  for (std::size_t i = 0; i < halves[0].size(); ++i) {
    out.push_back(halves[0][i]);
    out.push_back(halves[1][i]);
  }
  return out;
}

}  // namespace

std::vector<Val> transposed(const std::vector<Val>& rows) {
  const std::size_t n = rows.size();
  std::vector<Val> out(n);
  std::vector<Val> columns[4];  ///< [i]: by groups g of four rows, lane 4q + r is row 4g + r of column 4q + i
  for (std::size_t g = 0; g < n; g += 4) {
    const Val low01 = within_quarters(rows[g], rows[g + 1], {0, 4, 1, 5});
    const Val high01 = within_quarters(rows[g], rows[g + 1], {2, 6, 3, 7});
    const Val low23 = within_quarters(rows[g + 2], rows[g + 3], {0, 4, 1, 5});
    const Val high23 = within_quarters(rows[g + 2], rows[g + 3], {2, 6, 3, 7});
    columns[0].push_back(within_quarters(low01, low23, {0, 1, 4, 5}));
    columns[1].push_back(within_quarters(low01, low23, {2, 3, 6, 7}));
    columns[2].push_back(within_quarters(high01, high23, {0, 1, 4, 5}));
    columns[3].push_back(within_quarters(high01, high23, {2, 3, 6, 7}));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<Val> whole = transposed_quarters(columns[i]);
    for (std::size_t q = 0; q < whole.size(); ++q) out[4 * q + i] = whole[q];
  }
  return out;
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
