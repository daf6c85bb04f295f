// tests/tools/line_diff.test.cpp — diffs of lines read as those of diff(1)
#include "tools/output/line_diff.h"

#include "tests/catch.h"

using namespace attune::tools;

namespace {

std::string text_of(std::string_view a, std::string_view b) { return whole(diff_lines(a, b)); }
std::string unified_of(std::string_view a, std::string_view b, std::size_t around = 3) {
  return unified(diff_lines(a, b), "a", "b", around);
}

}  // namespace

TEST_CASE("a diff shows what went and what came, in order", "[line_diff]") {
  CHECK(text_of("a\nb\nc\n", "a\nx\nc\n") == "  a\n- b\n+ x\n  c\n");
  CHECK(text_of("a\n", "a\n") == "  a\n");
  CHECK(text_of("", "a\nb\n") == "+ a\n+ b\n");
  CHECK(text_of("a\nb\n", "b\n") == "- a\n  b\n");
  CHECK(text_of("a\na\n", "a\n") == "  a\n- a\n");
  CHECK(text_of("a\n\nb", "a\nb") == "  a\n- \n  b\n");
  CHECK(text_of("a\nb\nc\nd\n", "b\nx\nd\na\n") == "- a\n  b\n- c\n+ x\n  d\n+ a\n");
}

TEST_CASE("a unified diff has the headers of diff -u", "[line_diff]") {
  CHECK(unified_of("a\nb\n", "a\nb\n").empty());
  CHECK(unified_of("", "a\n") == "--- a\n+++ b\n@@ -0,0 +1 @@\n+a\n");
  CHECK(unified_of("a\n", "") == "--- a\n+++ b\n@@ -1 +0,0 @@\n-a\n");
  CHECK(unified_of("1\n2\n3\n4\n5\n6\n7\n8\n", "1\n2\n3\n4\nx\n6\n7\n8\n", 1) ==
        "--- a\n+++ b\n@@ -4,3 +4,3 @@\n 4\n-5\n+x\n 6\n");
  // Two differences close to each other share their context lines.
  CHECK(unified_of("1\n2\n3\n4\n", "x\n2\n3\ny\n", 1) == "--- a\n+++ b\n@@ -1,4 +1,4 @@\n-1\n+x\n 2\n 3\n-4\n+y\n");
  CHECK(unified_of("1\n2\n3\n4\n5\n", "x\n2\n3\n4\ny\n", 1) ==
        "--- a\n+++ b\n@@ -1,2 +1,2 @@\n-1\n+x\n 2\n@@ -4,2 +4,2 @@\n 4\n-5\n+y\n");
}

TEST_CASE("colours are asked for", "[line_diff]") {
  CHECK(unified(diff_lines("a\n", "b\n"), "a", "b", 3, true) ==
        "\x1b[1m--- a\x1b[0m\n\x1b[1m+++ b\x1b[0m\n\x1b[36m@@ -1 +1 @@\x1b[0m\n\x1b[31m-a\x1b[0m\n\x1b[32m+b\x1b[0m\n");
}
