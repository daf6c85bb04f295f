// runtime/ranks/plan/digester.h — numbers and bytes as one digest, for ranks to compare
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/node.h"

namespace attune::runtime::ranks {

class Digester {
 public:
  void add(std::int64_t n) { words_.push_back(static_cast<std::uint64_t>(n)); }
  void add(double x) { words_.push_back(std::bit_cast<std::uint64_t>(x)); }
  void add(const ir::Digest& d) { words_.insert(words_.end(), {d.high, d.low}); }
  void add(std::span<const std::byte> bytes);
  ir::Digest digest() const;

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace attune::runtime::ranks
