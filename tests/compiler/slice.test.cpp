// tests/compiler/slice.test.cpp — Mods of slices of a call: offsets added to their coordinates, or nothing added
#include "compiler/bind.h"

#include <attune/attune.h>

#include "compiler/lower.h"
#include "tests/catch.h"

using namespace attune;
using compiler::PartSink;

namespace {

compiler::BoundMod part_of(const Attention& attention, PartSink sink = PartSink::kept) {
  return compiler::part_of(compiler::trace(attention), sink);
}
ir::Digest digest_of(compiler::BoundMod mod) { return compiler::lower(std::move(mod)).digest; }

}  // namespace

TEST_CASE("a Mod that sees positions alone is its own part", "[part]") {
  const Attention causal{.score = [](Float s, At at) { return s + 0.5f * f32(at.kv - at.q); }, .mask = mods::causal()};
  const compiler::BoundMod part = part_of(causal);
  CHECK_FALSE(part.mod.whole);
  CHECK(part.mod.params.empty());
  CHECK(digest_of(part) == compiler::lower(causal).digest);
  CHECK(compiler::params_of(part.mod, {2}, {.first_head = 4}) == std::vector<double>{2});
}

TEST_CASE("a Mod that sees the batch, heads, lengths or random numbers gets what is added to them", "[part]") {
  Param<float> slope("first_b", 0.5f);
  for (const Attention& attention :
       {Attention{.score = [&](Float s, At at) { return s + slope * f32(at.head); }},
        Attention{.mask = [](At at) { return at.kv <= at.q + at.kv_len - at.q_len; }},
        Attention{.mask = [](At at) { return at.kv % 2 == at.batch % 2; }},
        Attention{.prob = [](Float p, At) { return where(attune::random(3) < 0.5f, p, 0); }}}) {
    const compiler::BoundMod traced = compiler::trace(attention), part = compiler::part_of(traced, PartSink::kept);
    const std::size_t users = traced.mod.params.size();
    REQUIRE(part.mod.whole == users);
    CHECK(part.mod.params.size() == users + 4);
    CHECK(part.slots.params.size() == users + 4);
    for (std::size_t i = 0; i + 1 < part.mod.params.size(); ++i)
      for (std::size_t j = i + 1; j < part.mod.params.size(); ++j)
        CHECK(part.mod.params[i].name != part.mod.params[j].name);
    CHECK(digest_of(part) != digest_of(traced));
    // A user's Mod with four more parameters is a different Mod.
    compiler::BoundMod like = part;
    like.mod.whole = {};
    CHECK(digest_of(like) != digest_of(part));
    const compiler::Slice values{.first_batch = 1, .first_head = 2, .more_queries = 3, .more_keys = 4};
    CHECK(compiler::params_of(part.mod, {}, values) == std::vector<double>{1, 2, 3, 4});
  }
}

TEST_CASE("a sink joins one part", "[part]") {
  const Attention sunk{.sink = [](SinkAt at) { return 0.5f * f32(at.head); }};
  CHECK(part_of(sunk).mod.sink);
  const compiler::BoundMod dropped = part_of(sunk, PartSink::dropped);
  CHECK_FALSE(dropped.mod.sink);
  CHECK_FALSE(dropped.mod.whole);
}
