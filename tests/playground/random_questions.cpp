// tests/playground/random_questions.cpp — as many questions about random mods as asked for, one a line
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "ir/print.h"
#include "tests/fuzz/random_expr.h"

using namespace attune;
using Json = nlohmann::ordered_json;

namespace {

std::string type_of(ir::Type type) { return type == ir::Type::F32 ? "f32" : type == ir::Type::I32 ? "i32" : "bool"; }

Json question(std::uint64_t seed) {
  ir::Random random(seed);
  ir::Grammar grammar = ir::Grammar::ordinary();
  grammar.signature.params.pop_back();  // a Bool, which no text declares
  grammar.hostile = random.chance(0.3);
  const auto expr = [&](ir::Type type, std::uint32_t inputs) {
    grammar.inputs = inputs;
    grammar.random = inputs & bit(ir::Input::Q);  // no sink has one
    return ir::print(ir::random_expr(random.next(), type, grammar), grammar.signature);
  };
  const std::uint32_t at = bit(ir::Input::B) | bit(ir::Input::H) | bit(ir::Input::Q) | bit(ir::Input::KV) |
                           bit(ir::Input::QLen) | bit(ir::Input::KVLen);
  Json out;
  out["score"] = expr(ir::Type::F32, at | bit(ir::Input::S));
  if (random.chance(0.7)) out["mask"] = expr(ir::Type::Bool, at);
  if (random.chance(0.3)) out["prob"] = expr(ir::Type::F32, at | bit(ir::Input::P));
  if (random.chance(0.3)) out["sink"] = expr(ir::Type::F32, bit(ir::Input::B) | bit(ir::Input::H));
  out["captures"] = Json::array();
  for (const auto& capture : grammar.signature.captures) {
    Json shape = Json::array();
    for (int i = 0; i < capture.rank; ++i) shape.push_back(2 + random.below(4));
    out["captures"].push_back({{"name", capture.name},
                               {"type", type_of(capture.type)},
                               {"shape", shape},
                               {"fill", {{"seed", random.below(1000)}}}});
  }
  out["params"] = Json::array();
  for (const auto& param : grammar.signature.params)
    out["params"].push_back(param.name + (param.type == ir::Type::F32 ? "=1.5" : "=3"));
  out["q_len"] = 1 + random.below(40), out["kv_len"] = 1 + random.below(40);
  out["batch"] = 2, out["heads"] = 3, out["b"] = random.below(2), out["h"] = random.below(3);
  out["tile"] = {1 + random.below(16), 1 + random.below(16)};
  if (random.chance(0.5)) out["qk"] = {{"d", 1 + random.below(16)}, {"seed", random.below(100)}};
  if (random.chance(0.5)) out["cuda"] = {{"backward", random.chance(0.5)}};
  return out;
}

}  // namespace

int main(int count, char** arguments) {
  const int questions = count > 1 ? std::stoi(arguments[1]) : 500;
  for (int i = 0; i < questions; ++i) std::cout << question(static_cast<std::uint64_t>(i)).dump() << '\n';
}
