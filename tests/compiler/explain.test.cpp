// tests/compiler/explain.test.cpp — explain() of every mod of the corpus, as committed pages
#include "compiler/explain.h"

#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/numerics/corpus.h"

using namespace attune;

TEST_CASE("every mod of the corpus is explained as the committed page says", "[explain]") {
  for (const tests::CorpusMod& mod : tests::corpus()) {
    compiler::Steps steps;
    const compiler::LoweredMod lowered = compiler::lower(tests::make(mod, 1).attention, &steps);
    for (compiler::Steps::Step& s : steps.steps) s.took = {};
    tests::golden("explain/" + mod.name, compiler::explain(lowered, steps));
  }
}

TEST_CASE("explaining is about the Mod, not about the data", "[explain]") {
  for (const tests::CorpusMod& mod : tests::corpus()) {
    INFO(mod.name);
    const compiler::LoweredMod one = compiler::lower(tests::make(mod, 1).attention);
    const compiler::LoweredMod other = compiler::lower(tests::make(mod, 2).attention);
    REQUIRE(one.mod.digest() == other.mod.digest());
    REQUIRE(compiler::explain(one, {}) == compiler::explain(other, {}));
  }
}
