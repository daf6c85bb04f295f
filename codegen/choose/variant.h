// codegen/choose/variant.h — a kernel and how its tile is cut, as text: NAME:m=128,n=96,stages=2
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attune::codegen {

/// Members that are left out have the kernel's values for the call.
struct Variant {
  std::string kernel;
  std::vector<std::pair<std::string, int>> members;  ///< of the kernel's Tile

  std::optional<int> of(std::string_view member) const;
  void set(std::string_view member, int value);
  std::string text() const;
  auto operator<=>(const Variant&) const = default;
};

/// Throws an Error if `text` is not a variant.
Variant variant(std::string_view text);

/// A kernel that is tried before those of the tables.
struct Preference {
  Variant variant;
  bool only = false;   ///< no other kernel is tried, and an illegal one is an Error: for measurements
  std::string origin;  ///< who prefers it, for stories
  auto operator<=>(const Preference&) const = default;
};

}  // namespace attune::codegen
