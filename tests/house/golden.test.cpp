// tests/house/golden.test.cpp — a golden that differs fails, with a diff one can read
#include "tests/golden.h"

#include "tests/catch.h"

using attune::tests::diff;
using attune::tests::golden;

TEST_CASE("a diff shows what went and what came, in order", "[golden]") {
  CHECK(diff("a\nb\nc\n", "a\nx\nc\n") == "  a\n- b\n+ x\n  c\n");
  CHECK(diff("a\n", "a\n") == "  a\n");
  CHECK(diff("", "a\nb\n") == "+ a\n+ b\n");
  CHECK(diff("a\nb\n", "b\n") == "- a\n  b\n");
}

TEST_CASE("a golden that is equal passes, with or without the last newline", "[golden]") {
  golden("house/two-lines", "one\ntwo\n");
  golden("house/two-lines", "one\ntwo");
}

TEST_CASE("a golden that differs fails", "[golden][!shouldfail]") { golden("house/two-lines", "one\nthree\n"); }

TEST_CASE("a golden that is not there fails", "[golden][!shouldfail]") { golden("house/no-such-file", "one\n"); }
