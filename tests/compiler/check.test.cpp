// tests/compiler/check.test.cpp — what expressions may read, and reads that leave their tensors
#include "compiler/check.h"

#include <array>

#include <attune/attune.h>

#include "ir/node.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune;
using compiler::Mod, compiler::Problem;
using tests::golden_error, tests::refusal;

namespace {

Mod mod_of(ir::Expr score, ir::Expr mask, ir::Expr prob, ir::Expr sink = nullptr) {
  Mod mod;
  mod.score = std::move(score);
  mod.mask = std::move(mask);
  mod.prob = std::move(prob);
  mod.sink = std::move(sink);
  return mod;
}

const ir::Expr s = ir::input(ir::Input::S), p = ir::input(ir::Input::P), yes = ir::boolean(true);
const ir::Expr kv = ir::op(ir::Op::F32, ir::input(ir::Input::KV));

const Problem usual{
    .batch = 2, .q_heads = 4, .kv_heads = 4, .q = {.length = 100}, .kv = {.length = 200}, .d = 8, .dv = 8};

/// The reads of an Attention made of text, against a problem. `t` has the given extents.
struct Reads {
  int memory = 0;
  Tensor t;
  explicit Reads(std::initializer_list<std::int64_t> shape, DType type = DType::f32) : t(&memory, type, shape) {}

  std::size_t clamped(const std::string& score, const Problem& problem = usual) const {
    Text text;
    text.capture("t", t);
    const auto lowered = compiler::trace({.score = text.score(score, "--score")});
    return compiler::check_reads(lowered.mod, lowered.slots.captures, problem).size();
  }
  std::string refused(const std::string& score, const Problem& problem = usual) const {
    return std::string(refusal([&] { clamped(score, problem); }).what());
  }
};

}  // namespace

TEST_CASE("each expression reads only what there is where it stands", "[check]") {
  const ir::Expr by_random = ir::op(ir::Op::Random, ir::integer(1));
  golden_error("wrong-input.score", refusal([] { check(mod_of(ir::op(ir::Op::Add, s, p), yes, p)); }).what());
  golden_error("wrong-input.mask-s", refusal([] { check(mod_of(s, ir::op(ir::Op::Gt, s, kv), p)); }).what());
  golden_error("wrong-input.mask-p", refusal([] { check(mod_of(s, ir::op(ir::Op::Gt, p, kv), p)); }).what());
  golden_error("wrong-input.prob", refusal([] { check(mod_of(s, yes, ir::op(ir::Op::Mul, s, p))); }).what());
  golden_error("wrong-input.sink", refusal([] { check(mod_of(s, yes, p, kv)); }).what());
  golden_error("wrong-input.sink-random", refusal([&] { check(mod_of(s, yes, p, by_random)); }).what());
  CHECK_NOTHROW(check(mod_of(ir::op(ir::Op::Add, s, kv), ir::op(ir::Op::Gt, by_random, kv), p,
                             ir::op(ir::Op::F32, ir::input(ir::Input::H)))));
}

TEST_CASE("a read that is never in range is refused under the user's text", "[check]") {
  golden_error("capture-range.above", Reads({16}).refused("s + t[kv + 16]"));
  golden_error("capture-range.below", Reads({16}).refused("s + t[-1 - kv]"));
  golden_error("capture-range.literal", Reads({16}).refused("s + t[16]"));
  golden_error("capture-range.dimension", Reads({4, 16}).refused("s + t[h, q + 16]"));
  golden_error("capture-range.length", Reads({100}).refused("s + t[q_len]"));
  golden_error("capture-empty", Reads({0}).refused("s + t[h]"));
}

TEST_CASE("a tensor that is too small for a coordinate of the call is refused", "[check]") {
  golden_error("capture-range.heads", Reads({2}).refused("s + t[h]"));
  golden_error("capture-range.some", Reads({199}).refused("s + t[kv]"));
  golden_error("capture-range.first", Reads({200}).refused("s + t[kv - 1]"));
  golden_error("capture-range.sum", Reads({7}).refused("s + sum(i, 8, t[i])"));
  golden_error("capture-range.plane", Reads({100, 199}).refused("s + t[q, kv]"));
  for (const char* slope : {"s + t[q]", "s + t[2 * h]", "s + t[h / 2 + 2]", "s + t[h % 4]", "s + f32(t[b + 2])",
                            "s + t[floormod(q, 5)]", "s + t[kv_len - 199]", "where(h > 2, t[h], s)"}) {
    CAPTURE(slope);
    CHECK_FALSE(Reads({3}).refused(slope).empty());
  }
}

TEST_CASE("an index that is a function of one coordinate may be anything within the tensor", "[check]") {
  CHECK(Reads({200}).clamped("s + t[kv]") == 0);
  CHECK(Reads({4}).clamped("s + t[h]") == 0);
  CHECK(Reads({3}).clamped("s + t[clamp(kv, 0, 2)]") == 0);
  CHECK(Reads({2}).clamped("s + t[min(h, 1)]") == 0);
  // Intervals cannot prove that these stay inside, nor that they leave.
  CHECK(Reads({64}).clamped("s + t[kv - kv / 64 * 64]") == 1);
}

TEST_CASE("reads of pairs that are removed, and of values that are dropped, may be outside", "[check]") {
  const auto clamped = [](const Reads& of, const std::string& score, const std::string& mask) {
    Text text;
    text.capture("t", of.t);
    const auto lowered = compiler::trace({.score = text.score(score), .mask = text.mask(mask)});
    return compiler::check_reads(lowered.mod, lowered.slots.captures, usual).size();
  };
  const Reads first({100}), few({16});
  CHECK(clamped(first, "s + t[kv]", "kv <= q") == 1);
  CHECK(clamped(few, "s + t[kv]", "kv < 16 && kv <= q") == 1);
  CHECK(clamped(few, "s + t[kv]", "q == kv && q < 16") == 1);
  CHECK(clamped(few, "where(kv < 16, s + t[kv], s)", "true") == 1);
  CHECK(clamped(few, "where(kv >= 16, s, where(q > 3, s + t[kv], s))", "true") == 1);
  CHECK(clamped(few, "s", "kv < 16 && t[kv] > 0.0f") == 1);
  CHECK(clamped(few, "s", "kv >= 16 || t[kv] > 0.0f") == 1);
  CHECK_THROWS_AS(clamped(few, "s + t[kv]", "kv <= q"), Error);
  CHECK_THROWS_AS(clamped(few, "s + t[kv]", "kv < 17"), Error);
  CHECK_THROWS_AS(clamped(few, "where(kv < 16, s + t[kv], s + 2.0f * t[kv])", "true"), Error);
  CHECK_THROWS_AS(clamped(few, "s", "kv < 17 && t[kv] > 0.0f"), Error);
  // A mask that reads data may keep any pair.
  CHECK_THROWS_AS(clamped(few, "s + t[kv]", "t[clamp(kv, 0, 15)] > 0.0f"), Error);
}

TEST_CASE("an index of two coordinates, or of data, is clamped", "[check]") {
  CHECK(Reads({299}).clamped("s + t[q - kv + 199]") == 0);
  CHECK(Reads({298}).clamped("s + t[q - kv + 199]") == 1);
  CHECK(Reads({3}).clamped("s + t[q * 2 + b]") == 1);
  // A u8 is within 0..255.
  CHECK(Reads({256}, DType::u8).clamped("s + f32(t[t[kv]])") == 0);
  CHECK(Reads({255}, DType::u8).clamped("s + f32(t[t[kv]])") == 1);
}

TEST_CASE("the first query's position moves the range of q", "[check]") {
  Problem late = usual;
  late.q_offset = 50;
  CHECK(Reads({150}).clamped("s + t[q]", late) == 0);
  CHECK_THROWS_AS(Reads({149}).clamped("s + t[q]", late), Error);
  CHECK(Reads({149}).clamped("s + t[min(q, 148)]", late) == 0);
}

TEST_CASE("without any coordinates there is nothing to refuse", "[check]") {
  for (int size = 0; size < 4; ++size) {
    Problem none = usual;
    *std::array{&none.batch, &none.q_heads, &none.q.length, &none.kv.length}[static_cast<std::size_t>(size)] = 0;
    CHECK(Reads({16}).clamped("s + t[kv + 16]", none) == 0);
    CHECK(Reads({0}).clamped("s + t[kv]", none) == 0);
  }
}

TEST_CASE("a sink is evaluated even where there are no keys", "[check]") {
  const Reads reads({2});
  Text text;
  text.capture("t", reads.t);
  const auto lowered = compiler::trace({.sink = text.sink("t[h + 2]", "--sink")});
  Problem none = usual;
  none.kv.length = 0;
  golden_error("capture-range.sink",
               refusal([&] { compiler::check_reads(lowered.mod, lowered.slots.captures, none); }).what());
}
