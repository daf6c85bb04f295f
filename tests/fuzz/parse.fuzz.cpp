// tests/fuzz/parse.fuzz.cpp — any text is an Error or an expression that verifies, prints and reads back as itself
#include <attune/error.h>

#include <cstdint>

#include "ir/parse.h"
#include "ir/print.h"
#include "tests/fuzz/broken.h"

using namespace attune;
using namespace attune::ir;
using attune::tests::broken;

namespace {

// The names that the seeds use, with their usual types and ranks: a table, a bias, documents, a dense mask.
const Signature signature{{{"slope", Type::F32, 1},
                           {"t", Type::F32, 2},
                           {"bias", Type::F32, 4},
                           {"doc", Type::I32, 1},
                           {"P", Type::I32, 1},
                           {"g", Type::Bool, 1},
                           {"m", Type::Bool, 2},
                           {"one", Type::F32, 0}},
                          {{"c", Type::F32}, {"W", Type::I32}}};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // The first byte (a letter in the seeds) says what the text is for.
  constexpr std::uint32_t coordinates = bit(Input::B) | bit(Input::H) | bit(Input::Q) | bit(Input::KV) |
                                        bit(Input::QLen) | bit(Input::KVLen);
  Scope scope;
  scope.signature = &signature;
  switch (data[0] % 4) {
    case 0: scope.inputs = coordinates | bit(Input::P), scope.expected = Type::F32; break;  // p, as in prob
    case 1: scope.inputs = coordinates, scope.expected = Type::Bool; break;                 // m, as in mask
    case 2: scope.inputs = bit(Input::B) | bit(Input::H), scope.expected = Type::I32; break;
    case 3: scope.inputs = coordinates | bit(Input::S), scope.expected = Type::F32; break;  // s, as in score
  }
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  Expr e;
  try {
    e = parse(text, scope);
  } catch (const Error& error) {
    if (error.code.empty() || error.fix.empty()) broken("an Error without a code or a fix", error.what());
    return 0;
  }
  if (e->type != *scope.expected) broken("not the type asked for", text);
  if (e->uses & ~scope.inputs && !e->random) broken("a variable that is not allowed", text);
  if (const auto rule = verify(e, signature)) broken(rule->c_str(), text);
  const std::string printed = print(e, signature);
  if (printed.size() > max_text) return 0;
  try {
    if (!same(parse(printed, scope), e)) broken("printed, it is another expression", text + "\n" + printed);
  } catch (const Error& error) {
    // Lets share sub-expressions, so a text may be larger than the limit on nodes once they are written out.
    if (error.code != "too-large") broken("printed, it is a mistake", text + "\n" + error.what());
  }
  return 0;
}
