// tests/playground/answer.test.cpp — answers agree with the compiler and the oracle, and mistakes become messages
#include "playground/answer.h"

#include <attune/attune.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "ir/print.h"
#include "runtime/engines/picture/draw.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/numerics/corpus.h"

using namespace attune;
using Json = nlohmann::ordered_json;

namespace {

Json asked(const Json& question) { return Json::parse(playground::answer(question.dump())); }

std::vector<float> numbers(const std::string& base64) {
  std::string bytes;
  unsigned group = 0;
  int bits = 0;
  for (const char c : base64) {
    if (c == '=') break;
    const int digit = c >= 'a' ? c - 'a' + 26 : c >= 'A' ? c - 'A' : c == '+' ? 62 : c == '/' ? 63 : c - '0' + 52;
    group = group << 6 | static_cast<unsigned>(digit);
    if ((bits += 6) >= 8) bytes += static_cast<char>(group >> (bits -= 8) & 0xff);
  }
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), out.size() * 4);
  return out;
}

std::string fill_of(tests::Fill fill) {
  switch (fill) {
    case tests::Fill::normal: return "normal";
    case tests::Fill::positive: return "positive";
    case tests::Fill::slopes: return "slopes";
    case tests::Fill::documents: return "documents";
    case tests::Fill::any_ids:
    case tests::Fill::indices: return "indices";
    case tests::Fill::lengths: return "lengths";
    case tests::Fill::ramp: return "ramp";
    case tests::Fill::coins: return "coins";
  }
  return "normal";
}

Json question_of(const tests::CorpusMod& mod) {
  Json out{{"score", mod.score},
           {"mask", mod.mask},
           {"prob", mod.prob},
           {"sink", mod.sink},
           {"batch", 2},
           {"heads", 4},
           {"b", 1},
           {"h", 2},
           {"q_len", tests::corpus_q},
           {"kv_len", tests::corpus_kv},
           {"tile", {4, 4}}};
  out["captures"] = Json::array();
  for (const tests::CorpusCapture& c : mod.captures)
    out["captures"].push_back({{"name", c.name},
                               {"type", std::string(name_of(c.dtype))},
                               {"shape", c.shape},
                               {"fill", {{"how", fill_of(c.fill)}, {"limit", c.limit}}}});
  out["params"] = Json::array();
  for (const auto& [name, value] : mod.params) {
    const bool whole = name == "W" || name == "off";
    out["params"].push_back(name + "=" + (whole ? std::to_string(static_cast<int>(value)) : std::to_string(value)));
  }
  return out;
}

// f32(kv * 7) and the sum's + are four nodes.
std::string sum_of(int terms) {
  std::string out = "s";
  for (int i = 0; i < terms; ++i) out += " + f32(kv * " + std::to_string(i) + ")";
  return out;
}

}  // namespace

TEST_CASE("an answer has everything that a page shows", "[answer]") {
  Json all = asked({{"score", "cap * tanh((s + slope[h] * d) / cap)"},
                    {"mask", "kv <= q && doc[q] == doc[kv]"},
                    {"lets", {"d=f32(kv - q)"}},
                    {"captures",
                     {{{"name", "slope"}, {"shape", {4}}, {"fill", {{"how", "slopes"}}}},
                      {{"name", "doc"}, {"type", "i32"}, {"shape", {64}}, {"fill", {{"how", "documents"}}}}}},
                    {"params", {"cap=30.0"}},
                    {"heads", 4},
                    {"h", 1},
                    {"q_len", 64},
                    {"tile", {16, 8}},
                    {"qk", {{"d", 16}}},
                    {"cuda", {{"arch", 90}, {"backward", true}}}});
  // Pages and maps have tests of their own, and maps end in bits that differ between machines.
  for (Json& page : all["cuda"]) page["text"] = page["text"].get<std::string>().size() > 500 ? "long" : "short";
  for (const char* map : {"score", "prob", "grad"}) all["maps"][map] = numbers(all["maps"][map]).size();
  std::string out;
  for (const auto& [name, value] : all.items()) {
    out += "---- " + name + "\n";
    if (name == "says") {
      for (const auto& [language, text] : value.items()) out += text.get<std::string>() + "\n";
    } else if (name == "sections") {
      for (const Json& section : value)
        out += section["title"].get<std::string>() + "\n" + section["lines"].get<std::string>();
    } else {
      out += value.dump(1) + "\n";
    }
  }
  tests::golden("playground/answer", out);
}

TEST_CASE("of every mod that people write, an answer has what the command line shows", "[answer]") {
  for (const tests::CorpusMod& mod : tests::corpus()) {
    INFO(mod.name);
    const Json all = asked(question_of(mod));
    INFO(all.dump(1));
    REQUIRE(!all.contains("error"));
    const compiler::LoweredMod lowered = compiler::lower(tests::make(mod, 1).attention);
    REQUIRE(all["digest"] == lowered.digest.hex());
    REQUIRE(all["cover"]["mask"] == ir::print(lowered.cover.mask, lowered.mod.signature()));
    const std::vector<float> prob = numbers(all["maps"]["prob"]), score = numbers(all["maps"]["score"]);
    REQUIRE(prob.size() == std::size_t{tests::corpus_q * tests::corpus_kv});
    std::int64_t kept = 0;
    for (const float s : score) kept += !std::isnan(s);
    if (mod.score.find("inf") == std::string::npos) REQUIRE(all["tiles"]["kept"] == kept);
    for (std::size_t row = 0; mod.prob.empty() && mod.sink.empty() && row < tests::corpus_q; ++row) {
      double sum = 0;
      for (std::size_t i = 0; i < tests::corpus_kv; ++i)
        if (const float p = prob[row * tests::corpus_kv + i]; !std::isnan(p)) sum += p;
      REQUIRE((sum == 0 || std::fabs(sum - 1) < 1e-5));
    }
  }
}

TEST_CASE("the gradient of a probability is that of differences", "[answer]") {
  // s is 0, and a score that adds h to one pair moves that pair's s.
  const auto prob = [](const std::string& added) {
    return numbers(asked({{"score", "2.0f * tanh(s + 0.1f * f32(kv)" + added + ")"},
                          {"prob", "p * p"},
                          {"mask", "kv <= q"},
                          {"q_len", 6}})["maps"]["prob"]);
  };
  const std::vector<float> plain = prob("");
  const std::vector<float> grad = numbers(asked({{"score", "2.0f * tanh(s + 0.1f * f32(kv))"},
                                                 {"prob", "p * p"},
                                                 {"mask", "kv <= q"},
                                                 {"q_len", 6}})["maps"]["grad"]);
  for (int kv = 0; kv < 6; ++kv) {
    const std::vector<float> moved = prob(" + (kv == " + std::to_string(kv) + " ? 0.001f : 0.0f)");
    for (int q = kv; q < 6; ++q) {
      const auto at = static_cast<std::size_t>(q * 6 + kv);
      REQUIRE(grad[at] == Approx((moved[at] - plain[at]) / 0.001).margin(2e-3));
    }
  }
}

TEST_CASE("mistakes are messages, and never a crash", "[answer]") {
  const Json mistakes = {
      {{"mask", "kv <= "}},
      {{"mask", "kv <="}, {"score", "s +"}},
      {{"mask", "s > 0"}},
      {{"score", "kv <= q"}},
      {{"score", "slope[h]"}},
      {{"score", "s + ("}},
      {{"score", "s + 1e99"}},
      {{"score", std::string("s + \xff\xfe")}},
      {{"score", "s and s"}},
      {{"sink", "q"}},
      {{"prob", "s"}},
      {{"mask", "kv <= q"}, {"q_len", 0}},
      {{"mask", "kv <= q"}, {"q_len", -1}},
      {{"mask", "kv <= q"}, {"q_len", 1.5}},
      {{"mask", "kv <= q"}, {"q_len", "many"}},
      {{"mask", "kv <= q"}, {"q_len", 1e300}},
      {{"mask", "kv <= q"}, {"tile", 16}},
      {{"mask", "kv <= q"}, {"tile", {0, 16}}},
      {{"mask", "kv <= q"}, {"tile", {1, 1}}, {"q_len", 1 << 20}},
      {{"mask", "kv <= q"}, {"b", 1}},
      {{"mask", "kv <= q"}, {"h", -1}},
      {{"mask", 3}},
      {{"mask", Json::array()}},
      {{"lets", {"d"}}},
      {{"lets", {3}}},
      {{"lets", {{"d", 1}}}},
      {{"lets", {"kv=q"}}},
      {{"params", {"c=many"}}},
      {{"params", {"=3"}}},
      {{"params", {"c=1", "c=2"}}},
      {{"params", {"c=99999999999"}}},
      {{"captures", {{{"name", "t"}, {"shape", {-1}}}}}},
      {{"captures", {{{"name", "t"}, {"shape", {1 << 20, 1 << 20}}}}}},
      {{"captures", {{{"name", "t"}, {"shape", {1, 1, 1, 1, 1}}}}}},
      {{"captures", {{{"name", "t"}, {"type", "f33"}}}}},
      {{"captures", {{{"name", "3t"}}}}},
      {{"captures", {{{"name", ""}}}}},
      {{"captures", {{{"name", "s"}}}}},
      {{"captures", {"t"}}},
      {{"captures", {{{"name", "t"}, {"fill", "normal"}}}}},
      {{"captures", {{{"name", "t"}, {"fill", {{"how", "norma"}}}}}}},
      {{"captures", {{{"name", "t"}, {"fill", {{"seed", -1}}}}}}},
      {{"captures", {{{"name", "t"}, {"fill", {{"how", "list"}, {"list", {"a"}}}}}}}},
      {{"captures", {{{"name", "t"}, {"shape", {8}}}}}, {"score", "s + t[kv + 1000]"}},
      {{"captures", {{{"name", "t"}, {"shape", {8}}}}}, {"score", "s + t[q, kv]"}},
      {{"mask", "kv <= q"}, {"qk", {{"d", 0}}}},
      {{"mask", "kv <= q"}, {"cells", 1000}},
      {{"mask", "kv <= q"}, {"q_len", 1 << 20}, {"kv_len", 1 << 20}, {"tile", {4096, 4096}}},
      {{"mask", "kv <= q"}, {"cuda", {{"dtype", "f99"}}}},
      {{"mask", "kv <= q"}, {"cuda", {{"arch", 3}}}},
      {{"mask", std::string(300000, '(')}},
  };
  REQUIRE(mistakes.size() >= 50);
  for (const Json& mistake : mistakes) {
    const std::string text = mistake.dump(-1, ' ', false, Json::error_handler_t::replace);
    INFO(text.substr(0, 300));
    const Json all = Json::parse(playground::answer(text));
    REQUIRE(all.contains("error"));
    INFO(all.dump(1).substr(0, 2000));
    REQUIRE(all["error"]["code"] != "bug");
    REQUIRE(!all["error"]["message"].get<std::string>().empty());
  }
  for (const char* text : {"", "{", "[]", "3", "null", "{\"mask\": }", "\xff"})
    REQUIRE(Json::parse(playground::answer(text))["error"]["code"] == "bad-question");
  tests::golden_error("bad-question", asked({{"tile", 16}})["error"]["message"].get<std::string>());
}

TEST_CASE("an expression of 100 000 nodes is answered, and a larger one refused", "[answer]") {
  const Json all = asked({{"score", sum_of(25'000)}, {"q_len", 4}, {"tile", {4, 4}}});
  INFO(all.value("error", Json()).dump());
  REQUIRE(all.contains("digest"));
  REQUIRE(all["maps"]["rows"] == 4);
  // Too many nodes, and too long a text.
  for (const int terms : {50'001, 80'000}) REQUIRE(asked({{"score", sum_of(terms)}})["error"]["code"] == "too-large");
}
