// tests/compiler/mod.test.cpp — what a Mod's identity depends on, the types expressions see, what its text shows
#include "compiler/mod.h"

#include "tests/catch.h"
#include "tests/compiler/language.h"

using namespace attune;
using namespace attune::compiler;
using namespace attune::tests;

namespace {

Mod mod_of(std::string_view score) {
  Mod mod;
  mod.score = expr(score);
  mod.mask = expr("kv <= q");
  mod.prob = expr("p");
  mod.captures = {{"slope", DType::f32, 1}};
  mod.params = {{"cap", ir::Type::F32}};
  return mod;
}

}  // namespace

TEST_CASE("a Mod's digest is of its expressions and the types of what they read, not of names", "[mod]") {
  const Mod mod = mod_of("s + slope[h]");
  Mod other = mod;
  other.captures[0].name = "something";
  other.params[0].name = "else_";
  CHECK(other.digest() == mod.digest());
  other = mod;
  other.captures[0].dtype = DType::f16;
  CHECK(other.digest() != mod.digest());
  other = mod;
  other.captures[0].rank = 2;
  CHECK(other.digest() != mod.digest());
  other = mod;
  other.params[0].type = ir::Type::I32;
  CHECK(other.digest() != mod.digest());
  other = mod;
  other.captures.push_back({"more", DType::f32, 1});
  CHECK(other.digest() != mod.digest());
  CHECK(mod_of("s + slope[q]").digest() != mod.digest());
  other = mod;
  std::swap(other.score, other.prob);
  CHECK(other.digest() != mod.digest());
  other = mod;
  other.sink = expr("slope[h]");
  CHECK(other.digest() != mod.digest());
}

TEST_CASE("a capture of one type and a parameter are not taken for each other", "[mod]") {
  Mod one = mod_of("s"), two = mod_of("s");
  one.captures = {{"a", DType::f32, 0}};  // 0, as a parameter of the first type
  one.params = {};
  two.captures = {};
  two.params = {{"a", ir::Type::Bool}};
  CHECK(one.digest() != two.digest());
}

TEST_CASE("a kernel sees every element as a Float, an Int or a Bool", "[mod]") {
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::f64}) CHECK(type_of(t) == ir::Type::F32);
  for (const DType t : {DType::i64, DType::i32, DType::i16, DType::i8, DType::u8}) CHECK(type_of(t) == ir::Type::I32);
  CHECK(type_of(DType::boolean) == ir::Type::Bool);
}

TEST_CASE("a Mod's text is a line for each expression it has", "[mod]") {
  Mod mod = mod_of("s + slope[h] * cap");
  CHECK(mod.text() == "score  s + slope[h] * cap\nmask   kv <= q\nprob   p\n");
  mod.sink = expr("slope[h]");
  CHECK(mod.text().ends_with("sink   slope[h]\n"));
}
