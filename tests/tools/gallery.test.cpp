// tests/tools/gallery.test.cpp — every mod of the gallery: its text and its C++ are the same expression
#include "tests/gallery.h"

#include <sstream>

#include "compiler/lower.h"
#include "tests/catch.h"
#include "tools/options/text.h"

using namespace attune;

TEST_CASE("the text and the C++ of every mod of the gallery are the same expression", "[gallery]") {
  const std::vector<tests::GalleryMod> all = tests::gallery();
  REQUIRE(all.size() >= 50);
  for (const tests::GalleryMod& mod : all) {
    INFO(mod.name << "\n" << mod.text);
    tools::TextOptions text;
    std::istringstream lines(mod.text);
    for (std::string line; std::getline(lines, line);) REQUIRE(tools::add_to_mod(text, line));
    const runtime::TextAttention made = runtime::build(text, runtime::Captures::FilesOrTypes);
    REQUIRE(compiler::trace(made.attention).mod.digest() == compiler::trace(mod.attention).mod.digest());
    REQUIRE(compiler::lower(made.attention).digest == compiler::lower(mod.attention).digest);
  }
}
