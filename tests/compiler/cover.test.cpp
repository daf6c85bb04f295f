// tests/compiler/cover.test.cpp — covers of masks: bands as text, reasons for having none, and scores that remove pairs
#include "compiler/cover.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "compiler/lower.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "tests/catch.h"
#include "tests/golden.h"

using namespace attune;
using compiler::Bands;

namespace {

const ir::Signature& names() {
  using ir::Type;
  static const ir::Signature signature{{{"doc", Type::I32, 1},
                                        {"ids", Type::I32, 2},
                                        {"len", Type::I32, 1},
                                        {"map", Type::Bool, 3},
                                        {"slope", Type::F32, 1}},
                                       {{"W", Type::I32}}};
  return signature;
}

ir::Expr expr(std::string_view text) {
  return ir::parse(text, {.name = "test", .expected = {}, .signature = &names(), .lets = {}});
}
compiler::Cover cover(std::string_view mask) {
  return compiler::cover(compiler::simplify(expr(mask), compiler::coordinate_bounds()), names());
}

std::string text(const compiler::Cover& cover) {
  std::ostringstream out;
  const ir::Signature all = cover.signature(names());
  const auto say = [&](const ir::Expr& e) { return ir::print(e, all); };
  out << "may keep: " << say(cover.may_keep) << "\nmay drop: " << say(cover.may_drop) << "\n";
  for (const Bands* bands : {&cover.along_kv, &cover.along_q}) {
    out << (bands == &cover.along_kv ? "along kv\n" : "along q\n");
    for (const auto* list : {&bands->kept, &bands->gone})
      for (const compiler::Band& b : *list)
        out << (list == &bands->kept ? "  kept " : "  gone ") << say(b.begin) << " .. " << say(b.end)
            << (b.exact ? ", exact\n" : "\n");
    for (const compiler::Stop& s : bands->stops) out << "  stop at " << say(s.at) << ": " << s.why << "\n";
  }
  out << "varies with" << (cover.by_batch ? " b" : "") << (cover.by_head ? " h" : "")
      << (cover.by_batch || cover.by_head ? "" : " neither") << "\n";
  return out.str();
}

struct Named {
  const char *name, *mask;
};
constexpr std::array masks{
    Named{"causal", "kv <= q"},
    Named{"inverse-causal", "q <= kv"},
    Named{"offset", "kv <= q + W"},
    Named{"window", "kv <= q && q - kv < 1024"},
    Named{"two-sided-window", "abs(q - kv) <= 100"},
    Named{"window-by-head", "kv <= q && q - kv < len[h]"},
    Named{"window-by-parameter", "q - kv < W"},
    Named{"sinks-and-window", "kv <= q && (q - kv < 256 || kv < 4)"},
    Named{"prefix", "kv < len[b] || kv <= q"},
    Named{"padding", "kv < len[b] && q < len[b]"},
    Named{"chunked", "q / 128 == kv / 128"},
    Named{"chunked-causal", "q / 100 == kv / 100 && kv <= q"},
    Named{"block-causal", "kv / 64 <= q / 64"},
    Named{"scaled", "2 * kv <= q"},
    Named{"falling", "-2 * kv <= q - 90"},
    Named{"anti-diagonal", "q + kv < 4096"},
    Named{"diagonal", "q == kv"},
    Named{"holes", "kv == 2 * q"},
    Named{"negated", "!(kv <= q && q - kv < 16)"},
    Named{"rectangle", "q >= 20 && q < 50 && kv >= 30 && kv < 100"},
    Named{"documents", "doc[q] == doc[kv]"},
    Named{"documents-causal", "doc[q] == doc[kv] && kv <= q"},
    Named{"documents-by-batch", "ids[b, q] == ids[b, kv]"},
    Named{"other-documents-causal", "doc[q] != doc[kv] && kv <= q"},
    Named{"block-map", "map[h, q / 128, kv / 128]"},
    Named{"neighbourhood", "abs(q % 64 - kv % 64) <= 3 && abs(q / 64 - kv / 64) <= 3"},
    Named{"floats", "slope[q] < slope[kv]"},
    Named{"wraps", "kv * 100000000 <= q"},
};

}  // namespace

TEST_CASE("bands of the masks people write, both ways along", "[cover]") {
  for (const Named& m : masks) {
    const std::string got = std::string(m.mask) + "\n" + text(cover(m.mask));
    tests::golden(std::string("compiler/cover.") + m.name, got);
  }
}

TEST_CASE("a mask whose positions leave holes or nothing between its bounds has no exact band", "[cover]") {
  for (const char* mask : {"kv == 2 * q", "kv >= q && kv <= q / 2", "kv % 3 == q"}) {
    INFO(mask);
    const compiler::Cover made = cover(mask);
    const auto exact = [](const compiler::Band& b) { return b.exact; };
    CHECK(std::none_of(made.along_kv.kept.begin(), made.along_kv.kept.end(), exact));
  }
  CHECK(cover("kv <= q && q - kv < 7").along_kv.exact());
  CHECK(cover("q / 100 == kv / 100 && kv <= q").along_kv.exact());
}

TEST_CASE("what gives no band says why", "[cover]") {
  const auto why = [](const char* mask) {
    const compiler::Cover made = cover(mask);
    return made.along_kv.stops.empty() ? std::string("no stop") : made.along_kv.stops[0].why;
  };
  CHECK(why("kv * 100000000 <= q") == "its arithmetic may wrap around");
  CHECK(why("f32(kv) < slope[q]") == "it compares Floats");
  CHECK(why("random(3) < 0.5f") == "it is random");
  CHECK(why("kept(kv, q)") == "it is random");  // not a comparison, though it gives a Bool of two Ints
  CHECK(why("map[h, q, kv]") == "it is data");
  CHECK(why("kv % 3 == q") == "no bound on the axis follows from it");
  CHECK(why("kv * kv <= q") == "its arithmetic may wrap around");
  CHECK(why("kv <= q") == "no stop");
}

TEST_CASE("a cover varies with the batch and the head only if its mask does", "[cover]") {
  CHECK((!cover("kv <= q").by_batch && !cover("kv <= q").by_head));
  CHECK((cover("kv < len[b]").by_batch && !cover("kv < len[b]").by_head));
  CHECK((!cover("q - kv < len[h]").by_batch && cover("q - kv < len[h]").by_head));
}

TEST_CASE("a score that is -inf for any s removes a pair, and nothing less does", "[cover]") {
  const auto kept = [](const char* score) { return ir::print(compiler::kept_by_score(expr(score)), names()); };
  CHECK(kept("kv % 2 == 0 ? s : -inf") == "kv % 2 == 0");
  CHECK(kept("kv <= q ? s : -inf") == "kv <= q");
  CHECK(kept("kv > q ? -inf : s") == "!(kv > q)");
  CHECK(kept("0.5f * (kv <= q ? s : -inf)") == "kv <= q");
  CHECK(kept("(kv <= q ? s : -inf) + f32(q - kv)") == "kv <= q");
  CHECK(kept("min(s, kv <= q ? 1.0f : -inf)") == "kv <= q");
  CHECK(kept("kv <= q ? (kv < 4 ? s : -inf) : -inf") == "kv <= q && kv < 4");
  CHECK(kept("f32(q) + log(f32(kv <= q))") == "kv <= q");
  // A NaN or an infinity in s or in data would make these NaN.
  CHECK(kept("s + (kv <= q ? 0.0f : -inf)") == "true");
  CHECK(kept("slope[q] * (kv <= q ? 1.0f : -inf)") == "true");
  CHECK(kept("-(kv <= q ? s : -inf)") == "true");
  CHECK(kept("tanh(kv <= q ? s : -inf)") == "true");
  CHECK(kept("s > 0.0f ? s : -inf") == "true");
  CHECK(kept("max(s, kv <= q ? s : -inf)") == "true");
  CHECK(kept("(kv <= q ? s : -inf) + slope[q]") == "true");

  const compiler::Cover made = compiler::cover(expr("kv >= 4"), names(), expr("kv <= q ? s : -inf"));
  CHECK(ir::print(made.may_keep, names()) == ir::print(cover("kv >= 4 && kv <= q").may_keep, names()));
  CHECK(ir::print(made.may_drop, names()) == ir::print(cover("kv >= 4 && kv <= q").may_drop, names()));
}

TEST_CASE("what a cover is of does not hang on the slots of its captures and parameters", "[cover]") {
  const auto of = [](std::string_view mask) { return compiler::cover_of(cover(mask)); };
  const auto same = [&](std::string_view a, std::string_view b) { return of(a).mask == of(b).mask; };
  CHECK(same("doc[q] == doc[kv]", "len[q] == len[kv]"));
  CHECK(same("q < doc[kv] + len[q]", "q < len[kv] + doc[q]"));
  CHECK(!same("doc[q] == doc[kv]", "doc[q] == len[kv]"));
  CHECK(!same("doc[q] == doc[kv]", "doc[q] <= doc[kv]"));
  CHECK(of("len[q] == len[kv]").captures == std::vector<std::uint32_t>{2});
  CHECK(of("q < len[kv] + doc[q]").captures.size() == 2);
  CHECK(of("q - kv < W").params == std::vector<std::uint32_t>{0});
  CHECK(of("kv <= q").captures.empty());
}

TEST_CASE("a deep or wide mask gives a cover in time", "[cover]") {
  ir::Expr chain = ir::input(ir::Input::KV), wide = ir::input(ir::Input::KV);
  for (int i = 0; i < 10'000; ++i) chain = ir::op(ir::Op::Max, chain, ir::integer(i % 7));
  for (int i = 0; i < 60; ++i) wide = ir::op(ir::Op::Min, wide, ir::op(ir::Op::Max, wide, ir::input(ir::Input::Q)));
  for (const ir::Expr& e : {chain, wide}) {
    const compiler::Cover made = compiler::cover(ir::op(ir::Op::Le, e, ir::input(ir::Input::Q)), names());
    CHECK(!made.along_kv.stops.empty());
  }
}
