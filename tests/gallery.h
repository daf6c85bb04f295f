// tests/gallery.h — the mods of gallery/, as their C++ and as their text
#pragma once

#include <string>
#include <vector>

#include <attune/attune.h>

namespace attune::tests {

struct GalleryMod {
  std::string name, text;  ///< the text as a mod file has it
  Attention attention;     ///< made by the C++
};
std::vector<GalleryMod> gallery();

}  // namespace attune::tests
