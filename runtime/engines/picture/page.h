// runtime/engines/picture/page.h — what all pictures share: their colours, on light and dark pages, and text within SVG
#pragma once

#include <string>
#include <string_view>

namespace attune::runtime {

/// A style that follows the reader's preference. Classes: attune-page, -ink, -dim, -edge, -line, -full, -partial, …
extern const std::string_view page_style;

std::string escaped(std::string_view text);

}  // namespace attune::runtime
