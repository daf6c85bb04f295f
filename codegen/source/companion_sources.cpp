// codegen/source/companion_sources.cpp — the sources of a call's further kernels: with a Mod's cover, or without any
// expression
#include <algorithm>
#include <fmt/format.h>

#include <attune/error.h>

#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/source/source.h"
#include "codegen/source/source_text.h"

namespace attune::codegen {
namespace {

// ---- tile lists -----------------------------------------------------------------------------------------------------

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

// ---- without expressions --------------------------------------------------------------------------------------------

Source rows_source(const RowsSpec& spec) {
  const std::string text = fmt::format(
      "{}\nnamespace attune {{\n\nstruct Tile {{\n  using Element = {};\n  using Out = {};\n"
      "  static constexpr int width_v = {};\n  static constexpr Layout layout = Layout::{};\n"
      "  static constexpr float degree = {};\n}};\n\n}}  // namespace attune\n\n"
      "template __global__ void attune::rows<attune::Tile>(const __grid_constant__ attune::BackwardArgs);\n",
      source_include("rows"), gpu_element(spec.dtype).source_name, gpu_element(spec.out).source_name, spec.dv,
      spec.packed ? "packed" : "dense", ir::print_literal(ir::Type::F32, spec.degree));
  return {.name = "rows",
          .text = text,
          .options = source_options(spec.arch, true),
          .symbol = "attune::rows<attune::Tile>",
          .facts = {{"arch", fmt::format("sm_{}", spec.arch)}, {"type", std::string(name_of(spec.dtype))}}};
}

RowsSpec rows_spec(const KernelSpec& spec, double degree) {
  return {
      .arch = spec.arch, .dtype = spec.dtype, .out = spec.out, .dv = spec.dv, .packed = spec.packed, .degree = degree};
}

Source end_source(const KernelPlan& plan) {
  const std::string symbol = "attune::end_queries_sm90<attune::Tile>";
  return {.name = "end_queries_sm90",
          .text = fmt::format("{}\nnamespace attune {{\n\n{}\n}}  // namespace attune\n\n"
                              "template __global__ void {}(const __grid_constant__ attune::BackwardArgs);\n",
                              source_include(plan.kernel->name, plan.kernel->headers), source_tile(plan), symbol),
          .options = source_options(plan.spec.arch, true),
          .symbol = symbol,
          .facts = {{"arch", fmt::format("sm_{}", plan.spec.arch)}, {"type", std::string(name_of(plan.spec.dtype))}}};
}

namespace {

/// A kernel that prepares operands for the plan's kernel, with these numbers of its tile.
Source preparing_source(const KernelPlan& plan, std::string_view kernel, std::string_view args,
                        std::string_view numbers) {
  const std::string symbol = fmt::format("attune::{}<attune::Tile>", kernel);
  return {.name = std::string(kernel),
          .text = fmt::format("{}\nnamespace attune {{\n\nstruct Tile {{\n"
                              "  static constexpr int {};\n  static constexpr Layout layout = Layout::{};\n"
                              "}};\n\n}}  // namespace attune\n\n"
                              "template __global__ void {}(const __grid_constant__ attune::{});\n",
                              source_include(kernel), numbers, plan.spec.packed ? "packed" : "dense", symbol, args),
          .options = source_options(plan.spec.arch, true),
          .symbol = symbol,
          .facts = {{"arch", fmt::format("sm_{}", plan.spec.arch)}, {"type", std::string(name_of(plan.spec.dtype))}}};
}

}  // namespace

Source transpose_source(const KernelPlan& plan) {
  return preparing_source(plan, "transpose_v_sm90", "TransposeArgs",
                          fmt::format("n = {}, dv = {}", plan.tile.n, plan.tile.dv));
}

Source split_source(const KernelPlan& plan) {
  const Tile& tile = plan.tile;
  const KernelSpec& spec = plan.spec;
  return preparing_source(
      plan, "split_keys_sm90", "SplitArgs",
      fmt::format("n = {}, d = {}, dv = {}, parts = {}{}", tile.n, tile.d, tile.dv, tile.parts,
                  spec.cache.per_entry ? fmt::format(", per_entry = 1, paged = {}", int{spec.cache.paged()}) : ""));
}

Source split_rows_source(const KernelPlan& plan) {
  const Tile& tile = plan.tile;
  return preparing_source(plan, "split_rows_sm90", "SplitRowsArgs",
                          fmt::format("d = {}, dv = {}, parts = {}", tile.d, tile.dv, tile.parts));
}

Source plain_source(std::string_view kernel, int arch) {
  return {.name = std::string(kernel),
          .text = source_include(kernel),
          .options = source_options(arch, true),
          .symbol = fmt::format("attune::{}", kernel),
          .facts = {{"arch", fmt::format("sm_{}", arch)}}};
}

}  // namespace attune::codegen
