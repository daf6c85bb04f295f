// tools/line_diff.h — two texts line by line: what went, what came, whole or as a unified diff
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attune::tools {

/// A line of the one, the other, or both.
struct DiffLine {
  enum class Side : char { both = ' ', a = '-', b = '+' };
  Side side;
  std::string text;
};

std::vector<DiffLine> diff_lines(std::string_view a, std::string_view b);

/// All lines, the side before each: "  same", "- of a", "+ of b".
std::string whole(const std::vector<DiffLine>& lines);

/// As `diff -u` writes it, with so many lines around each difference; empty where there is none. `colour`: with the
/// escapes of a terminal.
std::string unified(const std::vector<DiffLine>& lines, std::string_view name_a, std::string_view name_b,
                    std::size_t around = 3, bool colour = false);

}  // namespace attune::tools
