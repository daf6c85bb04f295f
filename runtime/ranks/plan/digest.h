// runtime/ranks/plan/digest.h — what ranks compare: numbers and bytes as one digest, and the masks of calls
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "ir/node.h"

namespace attune::runtime::ranks {

/// Numbers and bytes as one digest.
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

/// Two calls have the same mask if these are equal: the mask, its parameters and the contents of its captured tensors.
struct MaskOf {
  ir::Digest mask, data;
  bool operator==(const MaskOf&) const = default;
};
/// Reads the mask's captured tensors, on the host.
MaskOf mask_of(const compiler::LoweredMod& lowered, const compiler::Args& args);

}  // namespace attune::runtime::ranks
