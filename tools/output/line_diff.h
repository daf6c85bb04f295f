// tools/output/line_diff.h — the differences between two texts by line, whole or as a unified diff
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attune::tools {

/// A line of one text, the other, or both.
struct DiffLine {
  enum class Side : char { both = ' ', a = '-', b = '+' };
  Side side;
  std::string text;
};

std::vector<DiffLine> diff_lines(std::string_view a, std::string_view b);

/// All lines, each after its side: "  same", "- of a", "+ of b".
std::string whole(const std::vector<DiffLine>& lines);

/// As `diff -u` writes it, with `around` lines around each difference; empty if there is none. `colour`: with a
/// terminal's escapes.
std::string unified(const std::vector<DiffLine>& lines, std::string_view name_a, std::string_view name_b,
                    std::size_t around = 3, bool colour = false);

}  // namespace attune::tools
