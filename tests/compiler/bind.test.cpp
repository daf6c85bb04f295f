// tests/compiler/bind.test.cpp — coordinates shifted, permuted and fixed in every expression of a Mod
#include "compiler/bind.h"

#include <attune/error.h>

#include "tests/catch.h"
#include "tests/compiler/language.h"

using namespace attune;
using namespace attune::compiler;
using namespace attune::tests;
using ir::Input;

namespace {

Mod mod_of(std::string_view score, std::string_view mask = "true") {
  Mod mod;
  mod.score = expr(score);
  mod.mask = expr(mask);
  mod.prob = expr("p");
  mod.params = names().params;
  return mod;
}

}  // namespace

TEST_CASE("a shard's query shifted is the whole's query", "[bind]") {
  const Mod whole = mod_of("s + slope[q - kv] * f32(q) + sum(i, 3, table[q + i])", "kv <= q");
  const Mod shard = bind(whole, {.inputs = {{Input::Q, expr("q + 4096")}}, .params = {}});
  CHECK(text(shard.mask) == "kv <= q + 4096");
  Setting there, here;
  there.env.q = here.env.q + 4096;
  CHECK(here(shard.score) == there(whole.score));
}

TEST_CASE("two coordinates change places at once", "[bind]") {
  const Mod swapped = bind(mod_of("s + bias[q, kv]"),
                           {.inputs = {{Input::Q, expr("kv")}, {Input::KV, expr("q")}}, .params = {}});
  CHECK(text(swapped.score) == "s + bias[kv, q]");
}

TEST_CASE("a length and a parameter become literals", "[bind]") {
  const Mod fixed = bind(mod_of("s * cap", "kv < kv_len - width"),
                         {.inputs = {{Input::KVLen, ir::integer(8192)}}, .params = {{0, 2.5}, {1, 7}}});
  CHECK(text(fixed.score) == "s * 2.5f");
  CHECK(text(fixed.mask) == "kv < 8192 - 7");
}

TEST_CASE("what is bound may hold sums, and stands in sums, without capture", "[bind]") {
  const Mod bound = bind(mod_of("sum(i, 3, sum(j, 2, f32(i * q + j)))"),
                         {.inputs = {{Input::Q, expr("sum(i, 4, doc[i])")}}, .params = {}});
  CHECK_FALSE(ir::verify(bound.score, names()));
  Setting at;
  const double q = at(expr("sum(i, 4, doc[i])"));
  double expected = 0;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 2; ++j) expected += i * q + j;
  CHECK(at(bound.score) == expected);
}

TEST_CASE("binding a coordinate to a value of another type is a Bug", "[bind]") {
  CHECK_THROWS_AS(bind(mod_of("s"), {.inputs = {{Input::Q, ir::real(1)}}, .params = {}}), Bug);
}

TEST_CASE("random numbers are drawn by the coordinates themselves, so these cannot be moved under them", "[bind]") {
  const Mod noisy = mod_of("s + random(3)");
  CHECK_THROWS_AS(bind(noisy, {.inputs = {{Input::Q, expr("q + 1")}}, .params = {}}), Bug);
  CHECK(text(bind(noisy, {.inputs = {{Input::KVLen, ir::integer(5)}}, .params = {}}).score) == "s + random(3)");
}
