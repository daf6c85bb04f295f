// tests/house/golden.test.cpp — a golden that differs fails
#include "tests/golden.h"

#include "tests/catch.h"

using attune::tests::golden;

TEST_CASE("a golden that is equal passes, with or without the last newline", "[golden]") {
  golden("house/two-lines", "one\ntwo\n");
  golden("house/two-lines", "one\ntwo");
}

TEST_CASE("a golden that differs fails", "[golden][!shouldfail]") { golden("house/two-lines", "one\nthree\n"); }

TEST_CASE("a golden that is not there fails", "[golden][!shouldfail]") { golden("house/no-such-file", "one\n"); }
