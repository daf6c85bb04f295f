// codegen/forward_page.cpp — a Mod as the page of a forward kernel
#include "codegen/source.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numbers>

#include "codegen/exponent.h"
#include "codegen/limits.h"
#include "codegen/page.h"
#include "codegen/parts.h"
#include "codegen/reads.h"
#include "compiler/level.h"
#include "compiler/lower.h"

namespace attune::codegen {
namespace {

using compiler::Cover, compiler::Mod, compiler::Vary;
using ir::Expr, ir::Input, ir::Level, ir::Op;

/// The expressions of a page. `levels.left` holds exponent, what limits leave of the mask, prob, and the limits.
struct DeviceParts {
  compiler::Levels levels;
  Expr rest, sink;
  Expr factor;  ///< null: the exponent is more than factor * s
  bool has_first = false, has_last = false, has_keep = false, keeps_by_fields = false;
  ForwardFacts facts;
  float most = 0;
  ir::FieldNames fields;

  const Expr& exponent() const { return levels.left[0]; }
  const Expr& keep() const { return levels.left[1]; }
  const Expr& prob() const { return levels.left[2]; }
  const Expr& first() const { return levels.left[3]; }
  const Expr& last() const { return levels.left[4]; }
};

/// An origin belongs to a tile of queries: what depends on it is no field of a head or a row.
void keep_origin_out(compiler::Levels& levels) {
  const auto filter = [&](Level level, std::vector<Expr>& list, std::initializer_list<std::vector<Expr>*> later) {
    ir::DigestMap<Expr> by;
    std::vector<Expr> kept;
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      const Expr field = ir::field(level, i, list[i]->type);
      if (ir::uses(list[i], Input::Origin)) {
        by.emplace(field->digest, list[i]);
      } else {
        by.emplace(field->digest, ir::field(level, static_cast<std::uint32_t>(kept.size()), list[i]->type));
        kept.push_back(list[i]);
      }
    }
    if (kept.size() == list.size()) return;
    list = std::move(kept);
    for (std::vector<Expr>* l : later)
      for (Expr& e : *l) e = ir::substitute(e, by);
  };
  filter(Level::Head, levels.head, {&levels.row, &levels.col, &levels.left});
  filter(Level::Row, levels.row, {&levels.col, &levels.left});
}

bool reads_summaries(const compiler::Bands& bands, std::size_t captures) {
  std::vector<Expr> ends;
  for (const auto* list : {&bands.kept, &bands.gone})
    for (const compiler::Band& band : *list) ends.insert(ends.end(), {band.begin, band.end});
  const std::vector<Expr> nodes = ir::in_order(ends);
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const Expr& e) { return e->op == Op::Read && e->bits >= captures; });
}

/// Where bands leave something open, and verdicts on tiles say anything at all.
bool listed(const Cover& cover, std::size_t captures) {
  const compiler::Bands& bands = cover.along_kv;
  if (bands.exact() && bands.kept.size() <= 1 && !reads_summaries(bands, captures)) return false;
  return !ir::is_literal(cover.may_keep, 1) || !ir::is_literal(cover.may_drop, 1);
}

float upward(double x) { return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity()); }

/// Of a row and a column: nothing but their fields?
bool asks_fields_alone(const Expr& e) {
  const std::vector<Expr> nodes = ir::in_order(e);
  return std::none_of(nodes.begin(), nodes.end(), [](const Expr& n) {
    const auto is = [&](Input which) { return n->bits == static_cast<std::uint32_t>(which); };
    return (n->op == Op::Input && (is(Input::Q) || is(Input::KV))) || (n->random && n->op != Op::Field);
  });
}

/// Do fields vary with the head?
bool ask_heads(std::span<const Expr> fields) {
  const std::vector<Expr> nodes = ir::in_order(fields);
  return std::ranges::any_of(nodes, [](const Expr& n) {
    return ir::uses(n, Input::H) || (n->op == Op::Field && ir::field_level(*n) == Level::Head);
  });
}

DeviceParts device_parts(const Mod& mod, const Cover& cover, const ir::Signature& signature, bool scale_positive) {
  DeviceParts out;
  const Expr scale = ir::param(static_cast<std::uint32_t>(mod.params.size()), ir::Type::F32);
  const Expr prob = gathered(value_of(mod.prob)), mask = value_of(mod.mask);
  const Limits limits = limits_of(mask);
  out.has_first = limits.first != nullptr;
  out.has_last = limits.last != nullptr;
  const Expr none = ir::integer(0);
  out.levels = compiler::level(std::array{exponent(value_of(mod.fold.core), scale), limits.rest, prob,
                                          out.has_first ? limits.first : none, out.has_last ? limits.last : none});
  out.has_keep = !ir::is_literal(out.keep(), 1);
  out.keeps_by_fields = out.has_keep && asks_fields_alone(out.keep()) && read_captures(out.levels.col);
  keep_origin_out(out.levels);
  out.rest = value_of(mod.fold.row);
  out.sink = mod.sink ? value_of(mod.sink) : nullptr;

  ForwardFacts& facts = out.facts;
  const Expr& e = out.exponent();
  const bool multiple = e->op == Op::Mul && e->args[0]->op == Op::Input && !ir::uses(e->args[1], Input::S) &&
                        compiler::varies(e->args[1]) == Vary::Head;
  if (multiple && scale_positive && mod.fold.affine) {
    const ir::Interval factor = ir::range(mod.fold.scale, compiler::coordinate_bounds());
    facts.scaled = factor.numbers() && factor.lo >= 0;
  }
  // A field of a row would be another matter: the factor is asked for once.
  const auto nodes = multiple ? ir::in_order(e->args[1]) : std::vector<Expr>{};
  for (const Expr& n : nodes) facts.scaled = facts.scaled && (n->op != Op::Field || ir::field_level(*n) == Level::Head);
  if (facts.scaled) out.factor = e->args[1];
  facts.bounded = mod.fold.bounded();
  if (facts.bounded) out.most = upward(mod.fold.range.hi * std::numbers::log2e);
  facts.masked = !ir::is_literal(mask, 1);
  facts.has_prob = prob->op != Op::Input;
  facts.linear_prob = linear_in_p(value_of(mod.prob));
  facts.has_sink = mod.sink != nullptr;
  facts.listed = listed(cover, mod.captures.size());
  facts.shares_tiles = !cover.by_head && !(read_captures(out.levels.col) && ask_heads(out.levels.col));
  out.fields = {field_names(out.levels.head, signature), field_names(out.levels.row, signature),
                field_names(out.levels.col, signature)};
  return out;
}

/// Of a struct with these fields: its value in another lane.
std::string of_lane(std::string_view type, const std::vector<std::string>& fields) {
  std::string values;
  for (const std::string& name : fields)
    values += fmt::format("{}attune::of_lane({}, lane)", values.empty() ? "" : ", ", name);
  return fmt::format("    __device__ {} of_lane(int lane) const {{ return {{{}}}; }}\n", type, values);
}

/// What lets a warp ask about a column once, see mod.cuh.
std::string alike_rows(const DeviceParts& parts) {
  if (!parts.keeps_by_fields) return {};
  std::string same;
  for (const std::string& name : parts.fields[1])
    same += fmt::format("{}{} == other.{}", same.empty() ? "" : " && ", name, name);
  return of_lane("Row", parts.fields[1]) +
         fmt::format("    __device__ bool is(const Row& other) const {{ return {}; }}\n", same);
}

/// What lets lanes share columns, see mod.cuh: where they read captured tensors.
std::string shared_columns(const DeviceParts& parts) {
  if (!read_captures(parts.levels.col)) return {};
  const std::array scores{parts.exponent(), parts.prob()};
  const std::vector<Expr> nodes = ir::in_order(scores);
  const bool in_scores = std::any_of(nodes.begin(), nodes.end(), [](const Expr& e) {
    return e->op == Op::Field && ir::field_level(*e) == Level::Col;
  });
  return fmt::format("    static constexpr bool in_scores = {};\n", in_scores) + of_lane("Col", parts.fields[2]);
}

/// Where a tile's reads need no clamping.
std::string inside_function(std::span<const Expr> reads, const ir::Signature& signature, const ir::FieldNames& fields) {
  std::uint32_t uses = 0;
  std::string holds;
  for (const Expr& read : reads) {
    std::string indices;
    for (std::size_t i = 0; i < read->arity; ++i) {
      uses |= page_uses(read->args[i]);
      indices += (i ? ", " : "") + page_value(read->args[i], signature, fields);
    }
    holds += fmt::format("{}{}.holds({})", holds.empty() ? "" : " && ", signature.captures[read->bits].name, indices);
  }
  return fmt::format(
      "  __device__ bool is_inside(Head head, Where at, Int q_begin, Int q_end, Int kv_begin, Int kv_end) "
      "const {{\n{}    return at_corners(q_begin, q_end, kv_begin, kv_end, [&](Int q, Int kv) {{\n"
      "      return {};\n    }});\n  }}\n",
      page_locals(uses), holds);
}

/// Lists say it all, or bands do, or nobody knows.
std::string bands_function(const Cover& cover, bool is_listed, std::size_t captures, const ir::Signature& signature) {
  const std::string head = "  __device__ Bands bands(Head head, Where at, Int q_begin, Int q_end) const {";
  const compiler::Bands& bands = cover.along_kv;
  const auto one_line = [&](std::string_view value) { return fmt::format("{} return {{{}}}; }}\n", head, value); };
  if (is_listed || (bands.kept.empty() && bands.exact())) return one_line("0, 0, 0, 0");
  if (ir::is_literal(cover.may_drop, 0)) return one_line("0, at.kv_len, 0, at.kv_len");
  const bool known = !reads_summaries(bands, captures);
  if (!known || bands.gone.empty()) return one_line("0, at.kv_len, 0, 0");

  std::uint32_t uses = 0;
  const auto of = [&](const Expr& end) {
    const Expr e = value_of(end);
    uses |= page_uses(e);
    return page_value(e, signature);
  };
  std::string ends = "0, at.kv_len", cuts;
  if (bands.kept.size() == 1) ends = fmt::format("int({}), int({})", of(bands.kept[0].begin), of(bands.kept[0].end));
  for (const compiler::Band& gone : bands.gone)
    cuts += fmt::format("    out.cut(int({}), int({}));\n", of(gone.begin), of(gone.end));
  return fmt::format("{}\n{}    Bands out{{{}, 0, at.kv_len}};\n{}    return out;\n  }}\n", head, page_locals(uses),
                     ends, cuts);
}

std::string_view element(DType dtype) { return dtype == DType::bf16 ? "bf16" : dtype == DType::f16 ? "f16" : "float"; }

std::string tile(const ForwardPlan& plan) {
  std::string out = fmt::format("struct Tile {{\n  using Element = {};\n  using Out = {};\n"
                                "  static constexpr int m = {}, n = {}, d = {}, dv = {}, stages = {}, heads = {};\n"
                                "  static constexpr Layout layout = Layout::{};\n"
                                "  static constexpr bool max = {};\n",
                                element(plan.dtype), element(plan.out), plan.m, plan.n, plan.d, plan.dv, plan.stages,
                                plan.heads, plan.packed ? "packed" : "dense", plan.max);
  for (const auto& [name, value] : plan.traits) out += fmt::format("  static constexpr int {} = {};\n", name, value);
  return out + "};\n";
}

/// The traits that differ from their defaults in mod.cuh, broken into lines as clang-format does.
std::string traits(const DeviceParts& parts) {
  const ForwardFacts& f = parts.facts;
  std::vector<std::string> list;
  const auto flag = [&](std::string_view name, bool value, bool usual = false) {
    if (value != usual) list.push_back(fmt::format(".{} = {}", name, value));
  };
  flag("scaled", f.scaled);
  flag("bounded", f.bounded);
  flag("masked", f.masked);
  flag("has_first", parts.has_first);
  flag("has_last", parts.has_last);
  flag("has_keep", parts.has_keep);
  flag("keeps_by_fields", parts.keeps_by_fields);
  flag("has_prob", f.has_prob);
  flag("linear_prob", f.linear_prob, true);
  flag("has_sink", f.has_sink);
  flag("listed", f.listed);
  if (f.bounded)
    list.push_back(fmt::format(".most = {}", ir::print_literal(ir::Type::F32, static_cast<double>(parts.most))));
  const std::string head = "  static constexpr Traits traits{";
  std::string out, line = head;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string text = list[i] + (i + 1 < list.size() ? "," : "};\n");
    if (i > 0 && line.size() + 1 + text.size() > page_width) {
      out += line + "\n";
      line = std::string(head.size(), ' ') + text;
    } else {
      line += (i > 0 ? " " : "") + text;
    }
  }
  return out + line + (list.empty() ? "};\n" : "");
}

std::string user(const Mod& mod, const Cover& cover, const ForwardPlan& plan, const PageNames& names, Lines lines) {
  ir::Signature signature = names.signature;
  signature.params.push_back({names.scale, ir::Type::F32});
  const DeviceParts parts = device_parts(mod, cover, signature, plan.scale_positive);
  const ForwardFacts& f = parts.facts;
  const auto function = [&](const std::string& head, const Expr& e) {
    return page_function(head, e, signature, parts.fields, lines);
  };
  const auto fields = [&](const std::string& head, const std::vector<Expr>& list) {
    return fields_function(head, list, signature, parts.fields, lines);
  };
  const std::string all_fields = fields_struct("Head", parts.levels.head, parts.fields[0]) +
                                 fields_struct("Row", parts.levels.row, parts.fields[1], alike_rows(parts)) +
                                 fields_struct("Col", parts.levels.col, parts.fields[2], shared_columns(parts));
  const std::vector<Expr> reads = linear_reads(std::array{parts.exponent(), parts.prob()});
  const bool inside = !reads.empty();
  const std::string members = page_members(mod, names, plan.wide, inside);
  std::string out = inside ? fmt::format(
                                 "struct Fields {{\n{}}};\n\ntemplate <Reads reads>\nstruct UserOf : Fields {{\n{}\n"
                                 "  using Inside = UserOf<Reads::inside>;\n",
                                 all_fields, members)
                           : fmt::format("struct User {{\n{}\n{}", members, all_fields);
  out += traits(parts) + "\n";
  out += fields("Head head(Where at)", parts.levels.head);
  out += fields("Row row(Head head, Where at, Int q)", parts.levels.row);
  out += fields("Col col(Head head, Where at, Int origin, Int kv)", parts.levels.col);
  out += function("float factor(Head head)", parts.factor ? parts.factor : ir::real(0));
  out += function("float exponent(float s, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)",
                  parts.exponent());
  out += function("float rest(Head head, Row row, Where at, Int origin, Int q)", parts.rest);
  out += function("Int first(Head head, Row row, Where at, Int q)", parts.first());
  out += function("Int last(Head head, Row row, Where at, Int q)", parts.last());
  out += function("bool keep(Head head, Row row, Col col, Where at, Int q, Int kv)", parts.keep());
  out += function("float prob(float p, Head head, Row row, Col col, Where at, Int q, Int kv)", parts.prob());
  out += function("float sink(Head head, Where at)", parts.sink ? parts.sink : ir::real(0));
  out += bands_function(cover, f.listed, mod.captures.size(), signature);
  if (!inside) return out + "};\n";
  return out + inside_function(reads, signature, parts.fields) + "};\nusing User = UserOf<Reads::clamped>;\n";
}

/// The widths of the products that a page asks wgmma.cuh for, which has all unless told.
std::string widths(const ForwardPlan& plan) {
  if (plan.kernel != "forward_sm90") return {};
  std::string out = fmt::format("#define ATTUNE_PRODUCTS ATTUNE_N{}", plan.n);
  if (plan.dv != plan.n) out += fmt::format(" ATTUNE_N{}", plan.dv);
  return out + "\n";
}

/// Does a choice hang on a division or function of positions, whose last bit may decide it?
bool wants_exact(const Mod& mod) {
  const auto inexact = [](const Expr& e) {
    const bool noisy = ir::uses(e, Input::S) || ir::uses(e, Input::P);
    return e->type == ir::Type::F32 && !noisy && (e->op == Op::Div || (e->op >= Op::Sqrt && e->op <= Op::Erf));
  };
  const auto chooses = [](const Expr& e) {
    const bool rounds = e->op >= Op::Floor && e->op <= Op::Trunc;
    return e->arity > 0 && e->args[0]->type == ir::Type::F32 && (e->type != ir::Type::F32 || rounds);
  };
  std::vector<Expr> decisive;
  for (const Expr& e : ir::in_order(std::array{mod.score, mod.mask, mod.prob}))
    if (chooses(e)) decisive.push_back(e);
  const std::vector<Expr> below = ir::in_order(decisive);
  return std::any_of(below.begin(), below.end(), inexact);
}

}  // namespace

ForwardFacts forward_facts(const Mod& mod, const Cover& cover, bool scale_positive) {
  ir::Signature signature = mod.signature();
  signature.params.push_back({"scale", ir::Type::F32});
  return device_parts(mod, cover, signature, scale_positive).facts;
}

Source forward_source(const Mod& mod, const Cover& cover, const ForwardPlan& plan, int arch, std::string_view path) {
  const PageNames names = page_names(mod);
  const bool exact = plan.exact || wants_exact(mod);
  const std::string space = exact ? "exact" : "fast";
  Source out{.name = plan.kernel,
             .text = {},
             .options = page_options(arch, exact),
             .symbol = fmt::format("attune::{0}<attune::{1}::Tile, attune::{1}::User>", plan.kernel, space),
             .facts = {{"arch", fmt::format("sm_{}", arch)},
                       {"type", std::string(name_of(plan.dtype))},
                       {"d", plan.d == plan.dv ? std::to_string(plan.d) : fmt::format("{}/{}", plan.d, plan.dv)},
                       {"tile", fmt::format("{}x{}", plan.m, plan.n)}}};
  for (auto& fact : mod.facts()) out.facts.push_back(std::move(fact));
  out.text = fmt::format("{}{}#include \"{}.cuh\"\n\nnamespace attune::{} {{\n\n", page_comment(mod), widths(plan),
                         plan.kernel, space);
  out.text += user(mod, cover, plan, names, path.empty() ? Lines::no : Lines::yes);
  out.text += fmt::format("static_assert(Mod<User> && sizeof(User) == {});\n\n", page_bytes(mod, plan.wide));
  out.text += tile(plan) + fmt::format("\n}}  // namespace attune::{}\n\n", space);
  out.text += fmt::format("template __global__ void {}(\n    const __grid_constant__ attune::ForwardArgs, "
                          "const __grid_constant__ attune::{}::User);\n",
                          out.symbol, space);
  if (path.empty()) return out;
  out.options.emplace_back(line_option);
  out.text = with_own_lines(out.text, path);
  return out;
}

}  // namespace attune::codegen
