// tests/include/mods.test.cpp — named mods make the expressions they document, from literals or from parameters
#include <attune/mods.h>
#include <attune/text.h>

#include <cmath>

#include <fmt/format.h>

#include "compiler/trace.h"
#include "ir/print.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune;

namespace {

std::string shown(const Attention& attention) {
  const compiler::Mod mod = compiler::trace(attention).mod;
  const ir::Expr& told = attention.score ? mod.score : attention.prob ? mod.prob : mod.mask;
  return ir::print(told, mod.signature());
}
std::string shown(const Mask& mask) { return shown(Attention{.mask = mask}); }
std::string shown(const Score& score) { return shown(Attention{.score = score}); }
std::string shown(const Prob& prob) { return shown(Attention{.prob = prob}); }
/// The nearest multiple of 1/65536 to what is kept.
std::string dropped(std::string_view keep, std::string_view seed) {
  const std::string n = fmt::format("max(round({} * 65536.0f), 1.0f)", keep);
  return fmt::format("where(kept({}, i32({})), p / ({} / 65536.0f), 0.0f)", seed, n, n);
}

}  // namespace

TEST_CASE("every number of a named mod may be a Param", "[mods]") {
  const Param<int> i("i", 8), j("j", 2), k("k", 3);
  const Param<float> x("x", 0.5f);
  const auto table = Device::cpu().array<float>({4, 16}, "table");
  const auto bucket = Device::cpu().array<int>({17}, "bucket");

  CHECK(shown(mods::causal(i)) == "kv <= q + i");
  CHECK(shown(mods::sliding_window(i)) == "kv <= q && q - kv < i");
  CHECK(shown(mods::two_sided_window(i)) == "abs(q - kv) <= i");
  CHECK(shown(mods::dilated_window(i, j)) == "abs(q - kv) <= i && (q - kv) % j == 0");
  CHECK(shown(mods::sink_window(i, j)) == "kv <= q && (q - kv < i || kv < j)");
  CHECK(shown(mods::prefix(i)) == "kv < i || kv <= q");
  CHECK(shown(mods::chunked(i)) == "q / i == kv / i");
  CHECK(shown(mods::block_causal(i)) == "kv / i <= q / i");
  CHECK(shown(mods::neighbourhood_2d(i, j, k)) ==
        "abs(clamp(q % i, k, i - 1 - k) - kv % i) <= k && abs(clamp(q / i, k, j - 1 - k) - kv / i) <= k");
  CHECK(shown(mods::softcap(x)) == "x * tanh(s / x)");
  CHECK(shown(mods::relative_bias(table, i)) == "s + table[h, q - kv + i]");
  CHECK(shown(mods::bucketed_bias(table, bucket, i)) == "s + table[h, bucket[clamp(q - kv + i, 0, 2 * i)]]");
  CHECK(shown(mods::dropout(x, i)) == dropped("x", "i"));
}

TEST_CASE("a number of a named mod is baked in", "[mods]") {
  CHECK(shown(mods::sliding_window(8)) == "kv <= q && q - kv < 8");
  CHECK(shown(mods::softcap(30)) == "30.0f * tanh(s / 30.0f)");
  CHECK(shown(mods::dropout(0.5, 7)) == dropped("0.5f", "7"));
}

TEST_CASE("dropout keeps a share", "[mods][errors]") {
  CHECK(shown(mods::dropout(1, 7)) == dropped("1.0f", "7"));
  for (const double keep : {0.0, -0.5, 1.5, std::nan("")})
    CHECK(tests::refusal([&] { (void)shown(mods::dropout(keep, 7)); }).code == "bad-argument");
  const int line = __LINE__ + 1;
  const Error told = tests::refusal([] { (void)shown(mods::dropout(2.0, 1)); });
  CHECK(told.problem == "`keep` cannot be 2.0f");
  CHECK(told.where.line == line);
  CHECK(told.where.name.ends_with("mods.test.cpp"));
}

TEST_CASE("a named mod of a text is that of C++", "[mods]") {
  const auto slope = Device::cpu().array<float>({4}, "slope");
  const auto table = Device::cpu().array<float>({4, 16}, "table");
  const auto doc = Device::cpu().array<int>({17}, "doc");
  Text text;
  text.capture("slope", slope).capture("table", table).capture("doc", doc);
  CHECK(shown(text.mask("causal()")) == shown(mods::causal()));
  CHECK(shown(text.mask("window(8)")) == shown(mods::sliding_window(8)));
  CHECK(shown(text.mask("sliding_window(8)")) == shown(mods::sliding_window(8)));
  CHECK(shown(text.mask("two_sided_window(8)")) == shown(mods::two_sided_window(8)));
  CHECK(shown(text.mask("dilated_window(8, 2)")) == shown(mods::dilated_window(8, 2)));
  CHECK(shown(text.mask("sink_window(8, 2)")) == shown(mods::sink_window(8, 2)));
  CHECK(shown(text.mask("prefix(doc)")) == shown(mods::prefix(doc)));
  CHECK(shown(text.mask("padding(doc)")) == shown(mods::padding(doc)));
  CHECK(shown(text.mask("document(doc)")) == shown(mods::document(doc)));
  CHECK(shown(text.mask("chunked(8)")) == shown(mods::chunked(8)));
  CHECK(shown(text.mask("block_causal(8)")) == shown(mods::block_causal(8)));
  CHECK(shown(text.mask("neighbourhood_2d(8, 4, 2)")) == shown(mods::neighbourhood_2d(8, 4, 2)));
  CHECK(shown(text.score("alibi(slope)")) == shown(mods::alibi(slope)));
  CHECK(shown(text.score("softcap(30)")) == shown(mods::softcap(30)));
  CHECK(shown(text.score("alibi(slope) | softcap(30)")) == shown(mods::alibi(slope) | mods::softcap(30)));
  CHECK(shown(text.score("relative_position()")) == shown(mods::relative_position()));
  CHECK(shown(text.score("relative_bias(table, 8)")) == shown(mods::relative_bias(table, 8)));
  CHECK(shown(text.score("bucketed_bias(table, doc, 8)")) == shown(mods::bucketed_bias(table, doc, 8)));
  CHECK(shown(text.score("key_bias(slope)")) == shown(mods::key_bias(slope)));
  const auto sees = Device::cpu().array<bool>({1, 3, 3}, "sees");
  text.capture("sees", sees);
  CHECK(shown(text.mask("tree(sees)")) == shown(mods::tree(sees)));
  CHECK(shown(text.prob("dropout(0.5, 7)")) == shown(mods::dropout(0.5, 7)));
  CHECK(shown(text.prob("head_gate(slope)")) == shown(mods::head_gate(slope)));
}

TEST_CASE("a named mod takes a value of the kernel too", "[mods]") {
  const auto cap = Device::cpu().array<float>({4}, "cap");
  const Score by_head = [=](Float s, At at) { return mods::softcap(cap[at.head])(s, at); };
  CHECK(shown(by_head) == "cap[h] * tanh(s / cap[h])");
}
