// runtime/one_line.h — texts of anybody's, as part of a line
#pragma once

#include <algorithm>
#include <string>

namespace attune::runtime {

/// Without what would end the line, or steer a terminal that shows it.
inline std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

}  // namespace attune::runtime
