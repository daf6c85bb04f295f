// compiler/mod.cpp — a Mod's identity and its text
#include "compiler/mod.h"

#include <array>

#include <fmt/format.h>

#include "ir/print.h"

namespace attune::compiler {

ir::Type type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f64:
    case DType::e4m3: return ir::Type::F32;
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u8: return ir::Type::I32;
    case DType::boolean: return ir::Type::Bool;
  }
  return ir::Type::F32;
}

// With scores at most 64 apart, exp2(log2(e) * (score - greatest)) is at least 2^-93: no row underflows.
bool Fold::bounded() const { return range.hi - range.lo <= 64; }

ir::Signature Mod::signature() const {
  ir::Signature signature;
  for (const CaptureSlot& c : captures) signature.captures.push_back({c.name, type_of(c.dtype), c.rank});
  signature.params = params;
  signature.whole = whole;
  return signature;
}

// The identity is the digest of an expression built over the roots and one node per slot: Digest then has one
// definition.
ir::Digest Mod::digest() const {
  ir::Expr all = ir::integer(0);
  const auto join = [&](const ir::Expr& e) { all = ir::make(ir::Op::Custom, ir::Type::F32, 0, std::array{all, e}); };
  for (const ir::Expr& root : {score, mask, prob, sink}) join(root ? root : ir::integer(0));
  join(ir::integer(static_cast<std::int32_t>(captures.size())));  // where the captures end and the parameters begin
  for (const CaptureSlot& c : captures)
    join(ir::integer(static_cast<std::int32_t>(static_cast<int>(c.dtype) * 8 + c.rank)));
  for (const ir::Signature::Param& p : params) join(ir::integer(static_cast<std::int32_t>(p.type)));
  if (whole) join(ir::boolean(true));
  return all->digest;
}

std::string Mod::text() const {
  const ir::Signature names = signature();
  std::string out;
  const auto line = [&](const char* name, const ir::Expr& e) {
    if (e) out += std::string(name) + ir::print(e, names) + "\n";
  };
  line("score  ", score);
  line("mask   ", mask);
  line("prob   ", prob);
  line("sink   ", sink);
  return out;
}

std::vector<std::pair<std::string, std::string>> Mod::facts() const {
  const ir::Signature names = signature();
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&](const char* name, const ir::Expr& e, std::string_view plain) {
    std::string text = e ? ir::print(e, names) : "";
    if (e && text != plain) out.emplace_back(name, std::move(text));
  };
  add("score", score, "s");
  add("mask", mask, "true");
  add("prob", prob, "p");
  add("sink", sink, "");
  for (const CaptureSlot& c : captures)
    out.emplace_back("capture", fmt::format("{} of {}, rank {}", c.name, name_of(c.dtype), c.rank));
  return out;
}

}  // namespace attune::compiler
