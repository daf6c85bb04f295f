// tests/runtime/machine/watch/status_line.test.cpp — what is written about waits: a line below the cursor, or plain
// lines
#include "runtime/machine/watch/log.h"

#include <array>
#include <string>

#include <unistd.h>

#include "tests/catch.h"

using namespace attune;
using runtime::ShownAs;

namespace {

/// What callbacks write into a pipe for these facts.
std::string written(ShownAs as, const std::vector<watch::Compiling>& facts) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const watch::Callbacks shown = runtime::show_on(ends[1], as);
  for (const watch::Compiling& fact : facts) shown.compiling(fact);
  close(ends[1]);
  std::string out(4096, '\0');
  out.resize(static_cast<std::size_t>(read(ends[0], out.data(), out.size())));
  close(ends[0]);
  return out;
}

watch::Compiling fact(std::string text, bool over = false) {
  return {.kernels = {}, .done = 0, .seconds = 1, .over = over, .text = std::move(text)};
}

}  // namespace

TEST_CASE("a status line is written below the cursor, no wider than the terminal, and erased", "[status_line]") {
  const std::string down = "\x1b"
                           "D",
                    up = "\x1bM",
                    keep = "\x1b"
                           "7",
                    back = "\x1b"
                           "8",
                    erase = "\x1b[K";
  const std::string begin = down + up + keep + down + "\r", end = erase + back;
  CHECK(written(ShownAs::line, {fact("one"), fact(std::string(100, 'x')), fact("over", true)}) ==
        begin + "one" + end + begin + std::string(79, 'x') + end + begin + end);
}

TEST_CASE("plain lines are the first of a wait and its end", "[status_line]") {
  CHECK(written(ShownAs::plain, {fact("one"), fact("two"), fact("over", true), fact("three"),
                                 fact("again over", true)}) == "one\nover\nthree\nagain over\n");
}
