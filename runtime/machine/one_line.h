// runtime/machine/one_line.h — makes any text safe as part of a line
#pragma once

#include <algorithm>
#include <string>

namespace attune::runtime {

/// Replaces characters that would end the line, or control a terminal that shows it.
inline std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

}  // namespace attune::runtime
