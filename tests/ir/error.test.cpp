// tests/ir/error.test.cpp — the text of an Error: columns, long lines, several lines, hostile text
#include <attune/error.h>

#include "tests/catch.h"
#include "tests/golden.h"

using namespace attune;

namespace {

std::string message(Place where, std::string why = "", std::string fix = "") {
  return Error("some-code", "something is wrong", std::move(where), std::move(why), std::move(fix)).what();
}

std::string line_of(const std::string& text, std::size_t n) {
  std::size_t at = 0;
  for (; n > 0; --n) at = text.find('\n', at) + 1;
  return text.substr(at, text.find('\n', at) - at);
}

}  // namespace

TEST_CASE("an Error shows the problem, the place, the reason and the fix", "[error]") {
  const Error e("capture-range", "capture `slope` is read out of range",
                {"--score", 0, "s + slope[kv] * f32(kv - q)", 4, 13}, "kv runs over 0..8191, and slope holds 16 values",
                "index it with h (0..15), or pass a tensor of at least 8192 values");
  tests::golden("ir/error", e.what());
  CHECK(line_of(e.what(), 0).size() >= 90);
  CHECK(e.code == "capture-range");
}

TEST_CASE("an Error leaves out what it does not know", "[error]") {
  CHECK(message({}) == "attune: something is wrong" + std::string(56, ' ') + "[some-code]");
  CHECK(line_of(message({"alibi.cpp", 14}), 1) == "   at  alibi.cpp:14");
  CHECK(line_of(message({"", 0, "q + 1", 0, 1}), 1) == "   at  q + 1");
  CHECK(line_of(message({"", 0, "q + 1", 0, 1}), 2) == "       ^");
  CHECK(message({"--mask", 0, "q + 1", 2, 2}).find('^') == std::string::npos);
}

TEST_CASE("a long problem is followed by its code after two spaces", "[error]") {
  const std::string problem(100, 'x');
  CHECK(Error("c", problem, {}, "", "").what() == "attune: " + problem + "  [c]");
}

TEST_CASE("a caret can stand after the last character", "[error]") {
  CHECK(line_of(message({"x", 0, "q +", 3, 4}), 3) == "          ^");
  CHECK(line_of(message({"x", 0, "q +", 70, 90}), 3) == "          ^");
}

TEST_CASE("a long text is cut around its span", "[error]") {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "x" + std::to_string(100 + i) + " + ";
  for (const std::size_t begin : {0u, 7u, 77u, 350u, 688u, 693u}) {
    const std::string shown = message({"", 0, text, begin, begin + 4});
    const std::string line = line_of(shown, 1).substr(7), carets = line_of(shown, 2).substr(7);
    INFO(line);
    CHECK(line.size() <= 100 + 2 * 2);  // an … is three bytes wide
    // Each … before the caret is one column and three bytes.
    const std::size_t shift = line.starts_with("…") ? 2 : 0;
    CHECK(line.substr(carets.find('^') + shift, 4) == text.substr(begin, 4));
    CHECK(carets.substr(carets.find('^')) == "^^^^");
  }
}

TEST_CASE("a span longer than a line keeps its beginning", "[error]") {
  const std::string text(1000, 'a');
  const std::string shown = message({"", 0, text, 500, 900});
  CHECK(line_of(shown, 2).size() <= 107);
  CHECK(line_of(shown, 2).find("^^^^^^") != std::string::npos);
}

TEST_CASE("a text of several lines shows the one with the span, and where it is", "[error]") {
  const std::string shown = message({"--mask", 0, "q < 3 &&\n  kv > x &&\n  true", 16, 17});
  CHECK(line_of(shown, 1) == "   at  --mask:2:8");
  CHECK(line_of(shown, 2) == "         kv > x &&");
  CHECK(line_of(shown, 3) == "              ^");
  CHECK(line_of(message({"", 0, "a\nb", 2, 3}), 1) == "   at  line 2:1");
  CHECK(line_of(message({"--mask", 0, "(a\nb", 0, 4}), 3) == "       ^^");
}

TEST_CASE("columns are code points", "[error]") {
  const std::string text = "q ≤ kv ≠ x";
  CHECK(line_of(message({"", 0, text, text.find('x'), text.size()}), 2) == "                ^");
}

TEST_CASE("a reason of several lines stays indented", "[error]") {
  CHECK(message({}, "one\ntwo\n", "three\nfour").find("\n  why  one\n       two\n  fix  three\n       four") !=
        std::string::npos);
}

TEST_CASE("an Error hands nothing on that a terminal would obey", "[error]") {
  const std::string hostile = std::string("a\x1b[31m\x07\0\x7f", 9) + "\r\xc2\x9b\xe2\x80\xae\xff\xc3\tz";
  const std::string shown = Error("c", hostile, {hostile, 0, hostile, 1, 2}, hostile, hostile).what();
  for (const char c : shown) CHECK((c == '\n' || static_cast<unsigned char>(c) >= 0x20));
  CHECK(shown.find('\x7f') == std::string::npos);
  CHECK(shown.find("\xc2\x9b") == std::string::npos);
  CHECK(shown.find("\xe2\x80\xae") == std::string::npos);
  CHECK(shown.find('\xff') == std::string::npos);
  CHECK(shown.find("a\xef\xbf\xbd[31m") != std::string::npos);
}

TEST_CASE("a Bug asks to be reported", "[error]") {
  CHECK(std::string(Bug("x is y").what()) ==
        "attune: this is a bug in attune: x is y; please report it with this text");
}
