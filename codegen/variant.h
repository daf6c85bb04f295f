// codegen/variant.h — a kernel and how its tile is cut, as text: forward_sm90:m=128,n=96,turns=0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/source.h"

namespace attune::codegen {

/// What it does not say is as kernels.def has it.
struct Variant {
  std::string kernel;
  std::vector<std::pair<std::string, int>> members;  ///< of the kernel's Tile

  std::optional<int> of(std::string_view member) const;
  void set(std::string_view member, int value);
  std::string text() const;
  auto operator<=>(const Variant&) const = default;
};

/// An Error about `text` where it is none.
Variant variant(std::string_view text);

/// A kernel that is tried before those of kernels.def.
struct Preference {
  Variant variant;
  bool only = false;   ///< and nothing else is: for who measures. Then what is illegal is an Error
  std::string origin;  ///< who prefers it, for stories
  auto operator<=>(const Preference&) const = default;
};

}  // namespace attune::codegen
