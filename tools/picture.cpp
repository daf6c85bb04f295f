// tools/picture.cpp — cells as block characters or letters
#include "tools/picture.h"

#include <array>
#include <clocale>
#include <cstring>
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

bool locale_is_utf8() {
  std::setlocale(LC_CTYPE, "");
  return !std::strcmp(nl_langinfo(CODESET), "UTF-8");
}

std::string for_terminal(const runtime::Grid& g) { return locale_is_utf8() ? half_blocks(g) : letters(g); }

}  // namespace attune::tools
