// runtime/engines/picture/page.cpp — what all pictures share: colours on light and dark pages, text within SVG, counts
// and shares as people read them
#include "runtime/engines/picture/page.h"

#include <fmt/format.h>

namespace attune::runtime {

// The colours of tiles stay distinct in grey too: dark, middle, light, the page's own. Names begin with attune because
// a notebook applies a picture's style to its whole page.
const std::string_view page_style =
    "<style>.attune-page{fill:#fff}.attune-ink{fill:#222}.attune-dim{fill:#555}.attune-edge{fill:none;stroke:#222}"
    ".attune-line{fill:none;stroke:#c9c9c9;stroke-width:.5}.attune-full{fill:#2c5f8d}.attune-partial{fill:#e79b4b}"
    ".attune-dropped{fill:#fbe9d2}.attune-plus{fill:#c2410c}.attune-minus{fill:#1d4ed8}.attune-likely{fill:#15603d}\n"
    "@media(prefers-color-scheme:dark){.attune-page{fill:#14181d}.attune-ink{fill:#e8e8e8}.attune-dim{fill:#a9b0b8}"
    ".attune-edge{stroke:#e8e8e8}.attune-line{stroke:#454d57}.attune-full{fill:#6ea8dc}.attune-dropped{fill:#4a3a28}"
    ".attune-plus{fill:#ff9d5c}.attune-minus{fill:#7fa8ff}.attune-likely{fill:#58d19a}}</style>\n";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';
    else
      out += c;
  }
  return out;
}

std::string grouped(std::int64_t n) {
  std::string out = std::to_string(n);
  for (std::size_t i = out.size(); i > 3;) out.insert(i -= 3, " ");
  return out;
}

std::string counted(std::int64_t n, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", grouped(n), n == 1 ? one : many);
}

std::string percent(double part, double whole) { return fmt::format("{:.2f} %", 100 * part / whole); }

}  // namespace attune::runtime
