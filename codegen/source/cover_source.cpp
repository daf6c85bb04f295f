// codegen/source/cover_source.cpp — a Mod's cover as the source of the kernel that writes tile lists
#include <algorithm>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/source/source.h"
#include "codegen/source/source_text.h"

namespace attune::codegen {
namespace {

using compiler::Cover, compiler::Mod, compiler::Summary;
using ir::Expr, ir::Input, ir::Level, ir::Op;

/// A verdict that the kernel can evaluate. If it needs runs or random numbers: true, which is always safe.
Expr verdict(const Expr& e, const Mod& mod, const Cover& cover) {
  const auto beyond = [&](const Expr& n) {
    if (ir::draws(n->op)) return true;
    if (n->op != Op::Read || n->bits < mod.captures.size()) return false;
    const Summary::Of of = cover.summaries[n->bits - mod.captures.size()].of;
    return of != Summary::Of::Least && of != Summary::Of::Greatest;
  };
  const std::vector<Expr> nodes = ir::in_order(e);
  return std::any_of(nodes.begin(), nodes.end(), beyond) ? ir::boolean(true) : value_of(e);
}

/// The verdicts. Reads that depend only on the queries or only on the keys are hoisted into fields, because all tiles
/// of a row share the reads of its queries, and a verdict may use a read several times.
struct Verdicts {
  std::vector<Expr> row, col;
  Expr may_keep, may_drop;
};

Verdicts hoisted(const Expr& may_keep, const Expr& may_drop) {
  Verdicts out;
  ir::DigestMap<Expr> by;
  for (const Expr& n : ir::in_order(std::array{may_keep, may_drop})) {
    const bool of_q = ir::uses(n, Input::QBegin) || ir::uses(n, Input::QEnd),
               of_kv = ir::uses(n, Input::KVBegin) || ir::uses(n, Input::KVEnd);
    if (n->op != Op::Read || n->free || (of_q && of_kv)) continue;  // free: at the index of a sum
    std::vector<Expr>& list = of_kv ? out.col : out.row;
    by.emplace(n->digest, ir::field(of_kv ? Level::Col : Level::Row, static_cast<std::uint32_t>(list.size()), n->type));
    list.push_back(n);
  }
  out.may_keep = ir::substitute(may_keep, by), out.may_drop = ir::substitute(may_drop, by);
  return out;
}

/// The name in args.cuh.
std::string_view name_of(CoverForm what) {
  switch (what) {
    case CoverForm::of_queries: return "of_queries";
    case CoverForm::of_keys: return "of_keys";
    case CoverForm::visits: return "visits";
  }
  throw Bug("a cover is written in no way that is known");
}

/// The mask alone: a kernel serves all scores whose captured tensors and parameters are the same.
Mod mask_of(Mod mod) {
  mod.score = mod.prob = mod.sink = nullptr;
  return mod;
}

}  // namespace

Source cover_source(const compiler::LoweredMod& lowered, bool offsets64, int arch, CoverForm what) {
  const Mod& mod = lowered.mod;
  const Cover& cover = lowered.cover;
  const ir::Signature users = source_signature(mod);
  ir::Signature signature = cover.signature(users);
  std::string summaries;
  for (std::size_t i = 0; i < cover.summaries.size(); ++i) {
    const Summary& s = cover.summaries[i];
    if (s.of != Summary::Of::Least && s.of != Summary::Of::Greatest) continue;
    const std::string_view function = s.of == Summary::Of::Least ? "least" : "greatest";
    const std::string& capture = users.captures[s.capture].name;
    // A prefix that no user's name has.
    std::string& name = signature.captures[mod.captures.size() + i].name = fmt::format("{}_of_{}", function, capture);
    summaries += fmt::format(
        "  template <class... Index>\n  __device__ auto {}(Index... index) const {{ return {}({}, index...); }}\n",
        name, function, capture);
  }
  const Verdicts verdicts = hoisted(verdict(cover.may_keep, mod, cover), verdict(cover.may_drop, mod, cover));
  const ir::FieldNames fields{
      {{}, field_names("row", verdicts.row, signature), field_names("col", verdicts.col, signature)}};
  Source out{.name = "cover",
             .text = {},
             .options = source_options(arch, true),
             .symbol = fmt::format("attune::cover<attune::exact::User, attune::CoverForm::{}>", name_of(what)),
             .facts = mask_of(mod).facts()};
  out.facts.insert(out.facts.begin(), {"arch", fmt::format("sm_{}", arch)});
  out.text = source_comment(mask_of(mod)) + source_include("cover") + "\nnamespace attune::exact {\n\nstruct User {\n";
  out.text += source_members(mod, users, offsets64) + "\n" + fields_struct("Row", verdicts.row, fields[1]) +
              fields_struct("Col", verdicts.col, fields[2]) + "\n" + summaries;
  out.text += fields_function("Row row(Where at, Int q_begin, Int q_end)", verdicts.row, signature, {});
  out.text += fields_function("Col col(Where at, Int kv_begin, Int kv_end)", verdicts.col, signature, {});
  const auto function = [&](std::string_view name, const Expr& e) {
    const std::string head = fmt::format(
        "bool {}(Row row, Col col, Where at, Int q_begin, Int q_end, Int kv_begin, Int kv_end)", name);
    return source_function(head, e, signature, fields);
  };
  out.text += function("may_keep", verdicts.may_keep) + function("may_drop", verdicts.may_drop);
  out.text += fmt::format("}};\nstatic_assert(Covers<User> && sizeof(User) == {});\n\n", source_bytes(mod, offsets64));
  out.text += "}  // namespace attune::exact\n\n";
  out.text += fmt::format("template __global__ void {}(\n    const __grid_constant__ attune::CoverArgs, "
                          "const __grid_constant__ attune::exact::User);\n",
                          out.symbol);
  return out;
}

}  // namespace attune::codegen
