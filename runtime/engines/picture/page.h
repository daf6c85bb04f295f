// runtime/engines/picture/page.h — what all pictures share: colours on light and dark pages, text within SVG, counts
// and shares as people read them
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attune::runtime {

/// A style that follows the reader's preference. Classes: attune-page, -ink, -dim, -edge, -line, -full, -partial, …
extern const std::string_view page_style;

std::string escaped(std::string_view text);

/// 1048576 becomes 1 048 576.
std::string grouped(std::int64_t n);
/// 1 query, 2 queries.
std::string counted(std::int64_t n, std::string_view one, std::string_view many);
/// 12.50 %
std::string percent(double part, double whole);

}  // namespace attune::runtime
