// tools/picture.cpp — cells as block characters or letters, numbers as digits
#include "tools/picture.h"

#include <algorithm>
#include <array>
#include <clocale>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <langinfo.h>
#include <string_view>

namespace attune::tools {

std::string half_blocks(const runtime::Grid& g) {
  // Indexed by the upper cell, then the lower one: none, some, all.
  constexpr std::array<std::array<std::string_view, 3>, 3> blocks{{{" ", "▖", "▄"}, {"▘", "▌", "▙"}, {"▀", "▛", "█"}}};
  std::string out;
  for (std::int32_t r = 0; r < g.rows; r += 2) {
    for (std::int32_t c = 0; c < g.columns; ++c)
      out +=
          blocks[static_cast<std::size_t>(g.at(r, c))][r + 1 < g.rows ? static_cast<std::size_t>(g.at(r + 1, c)) : 0];
    while (!out.empty() && out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out;
}

std::string letters(const runtime::Grid& g) {
  std::string out;
  for (std::int32_t r = 0; r < g.rows; ++r) {
    for (std::int32_t c = 0; c < g.columns; ++c) out += ".+#"[static_cast<std::size_t>(g.at(r, c))];
    out += '\n';
  }
  return out;
}

std::string digits(const runtime::Heat& heat) {
  const bool by_row = heat.scale == runtime::Heat::Scale::by_row;
  const auto largest = [&](std::int32_t begin, std::int32_t end) {
    double most = 0;
    for (std::int32_t i = begin; i < end; ++i)
      if (const double v = std::fabs(heat.values[static_cast<std::size_t>(i)]); std::isfinite(v))
        most = std::max(most, v);
    return most;
  };
  const double all = largest(0, heat.rows * heat.columns);
  std::string out = heat.caption + "\n";
  for (std::int32_t r = 0; r < heat.rows; r += 2) {
    const std::int32_t begin = r * heat.columns, end = begin + heat.columns;
    const double most = by_row ? largest(begin, end) : all;
    std::string line;
    for (std::int32_t i = begin; i < end; ++i) {
      const double value = heat.values[static_cast<std::size_t>(i)];
      const int level = most > 0 ? static_cast<int>(std::clamp(std::round(9 * value / most), -9.0, 9.0)) : 0;
      line += std::isnan(value) ? ' ' : level < 0 ? static_cast<char>('a' - 1 - level) : static_cast<char>('0' + level);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out + (by_row ? "9: the row's largest\n" : fmt::format("9: {:.3g}, i: {:.3g}\n", all, -all));
}

bool locale_is_utf8() {
  std::setlocale(LC_CTYPE, "");
  return !std::strcmp(nl_langinfo(CODESET), "UTF-8");
}

std::string for_terminal(const runtime::Grid& g) { return locale_is_utf8() ? half_blocks(g) : letters(g); }

}  // namespace attune::tools
