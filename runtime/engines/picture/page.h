// runtime/engines/picture/page.h — code that all pictures share: colours on light and dark pages, and text within SVG
#pragma once

#include <string>
#include <string_view>

namespace attune::runtime {

/// A style that follows the reader's preference. Classes: attune-page, -ink, -dim, -edge, -line, -full, -partial, …
extern const std::string_view page_style;

std::string escaped(std::string_view text);

}  // namespace attune::runtime
