// tests/tools/line_reader.test.cpp — which word Tab completes, and to what
#include "tools/mod/line_reader.h"

#include "tests/catch.h"

using namespace attune::tools;

TEST_CASE("the word before the cursor is a name, a command or an option", "[line_reader]") {
  CHECK(last_word("") == "");
  CHECK(last_word("30.0f * tan") == "tan");
  CHECK(last_word("f32(kv") == "kv");
  CHECK(last_word("kv <= q ") == "");
  // The language's operators end a name.
  CHECK(last_word("q-kv") == "kv");
  CHECK(last_word("s + -sl") == "sl");
  CHECK(last_word("c ? a:b_1") == "b_1");
  CHECK(last_word(":ma") == ":ma");
  CHECK(last_word(":cover --q-l") == "--q-l");
  CHECK(last_word(":bench --target cp") == "cp");
}

TEST_CASE("what begins with a word comes in order, each once", "[line_reader]") {
  CHECK(beginning_with("s", {"sum(", "q", "s", "sin(", "s"}) == std::vector<std::string>{"s", "sin(", "sum("});
  CHECK(beginning_with("z", {"s"}).empty());
}
