// codegen/kernel_source.cpp — a Mod as the source of a kernel of the forward or the backward
#include "codegen/source.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fmt/format.h>

#include <attune/error.h>

#include "codegen/gpu_element.h"
#include "codegen/gradient_source.h"
#include "codegen/kernel.h"
#include "codegen/reads.h"
#include "codegen/source_text.h"

namespace attune::codegen {
namespace {

using compiler::Cover, compiler::Mod;
using ir::Expr, ir::Input, ir::Level, ir::Op;

std::atomic<std::size_t> written_so_far{0};

/// The member function that returns a struct of these fields from another lane.
std::string of_lane(std::string_view type, const std::vector<std::string>& fields) {
  std::string values;
  for (const std::string& name : fields)
    values += fmt::format("{}attune::of_lane({}, lane)", values.empty() ? "" : ", ", name);
  return fmt::format("    __device__ {} of_lane(int lane) const {{ return {{{}}}; }}\n", type, values);
}

/// The functions with which a warp calls keep() for a column once, see mod.cuh.
std::string alike_rows(const GpuParts& parts) {
  if (!parts.facts.keeps_by_fields) return {};
  std::string same;
  for (const std::string& name : parts.fields[1])
    same += fmt::format("{}{} == other.{}", same.empty() ? "" : " && ", name, name);
  return of_lane("Row", parts.fields[1]) +
         fmt::format("    __device__ bool is(const Row& other) const {{ return {}; }}\n", same);
}

/// The functions with which lanes share columns that read captured tensors, see mod.cuh.
std::string shared_columns(const GpuParts& parts) {
  if (!read_captures(parts.levels.col)) return {};
  const std::array scores{parts.exponent(), parts.prob()};
  const std::vector<Expr> nodes = ir::in_order(scores);
  const bool in_scores = std::any_of(nodes.begin(), nodes.end(), [](const Expr& e) {
    return e->op == Op::Field && ir::field_level(*e) == Level::Col;
  });
  return fmt::format("    static constexpr bool in_scores = {};\n", in_scores) + of_lane("Col", parts.fields[2]);
}

/// The function that is true if a tile's reads need no clamping.
std::string inside_function(std::span<const Expr> reads, const ir::Signature& signature, const ir::FieldNames& fields) {
  std::uint32_t uses = 0;
  std::string holds;
  for (const Expr& read : reads) {
    std::string indices;
    for (std::size_t i = 0; i < read->arity; ++i) {
      uses |= source_uses(read->args[i]);
      indices += (i ? ", " : "") + source_value(read->args[i], signature, fields);
    }
    holds += fmt::format("{}{}.holds({})", holds.empty() ? "" : " && ", signature.captures[read->bits].name, indices);
  }
  return fmt::format(
      "  __device__ bool is_inside(Head head, Where at, Int q_begin, Int q_end, Int kv_begin, Int kv_end) "
      "const {{\n{}    return at_corners(q_begin, q_end, kv_begin, kv_end, [&](Int q, Int kv) {{\n"
      "      return {};\n    }});\n  }}\n",
      source_locals(uses, signature), holds);
}

/// The function that returns which positions of an axis a tile of the other axis visits, between these two ends. Tiles
/// come from lists or from exact bands; otherwise every tile counts as partial.
struct BandsFunction {
  std::string head;
  const compiler::Bands& bands;
  std::string_view begin, end;
};

std::string bands_function(const BandsFunction& of, const GpuParts& parts, const ir::Signature& signature) {
  const compiler::Bands& bands = of.bands;
  const auto one_line = [&](std::string_view value) { return fmt::format("{} return {{{}}}; }}\n", of.head, value); };
  if (parts.facts.listed || (bands.kept.empty() && bands.exact())) return one_line("0, 0, 0, 0");
  if (!parts.facts.skips) return one_line(fmt::format("{0}, {1}, {0}, {1}", of.begin, of.end));
  const bool known = !reads_summaries(bands, parts.mod().captures.size());
  if (!known || bands.gone.empty()) return one_line(fmt::format("{0}, {1}, {0}, {0}", of.begin, of.end));

  std::uint32_t uses = 0;
  const auto text = [&](const Expr& end) {
    const Expr e = value_of(end);
    uses |= source_uses(e);
    return source_value(e, signature);
  };
  std::string ends = fmt::format("{}, {}", of.begin, of.end), cuts;
  if (bands.kept.size() == 1)
    ends = fmt::format("int({}), int({})", text(bands.kept[0].begin), text(bands.kept[0].end));
  for (const compiler::Band& gone : bands.gone)
    cuts += fmt::format("    out.cut(int({}), int({}));\n", text(gone.begin), text(gone.end));
  return fmt::format("{}\n{}    Bands out{{{}, {}, {}}};\n{}    return out;\n  }}\n", of.head,
                     source_locals(uses, signature), ends, of.begin, of.end, cuts);
}

}  // namespace

std::string source_tile(const KernelPlan& plan) {
  const Tile& tile = plan.tile;
  std::string out = fmt::format("struct Tile {{\n  using Element = {};\n  using Out = {};\n"
                                "  static constexpr int m = {}, n = {}, d = {}, dv = {}, stages = {}, heads = {};\n"
                                "  static constexpr Layout layout = Layout::{};\n"
                                "  static constexpr bool max = {};\n",
                                gpu_element(plan.spec.dtype).source_name, gpu_element(plan.spec.out).source_name,
                                tile.m, tile.n, tile.d, tile.dv, tile.stages, tile.heads,
                                plan.spec.packed ? "packed" : "dense", plan.spec.max);
  if (plan.spec.before) out += "  static constexpr bool before = true;\n";
  if (plan.spec.fixed_split) out += "  static constexpr bool fixed_split = true;\n";
  for (const auto& [name, value] : tile.own) out += fmt::format("  static constexpr int {} = {};\n", name, value);
  return out + "};\n";
}

namespace {

std::string traits(const GpuParts& parts) {
  const Traits& f = parts.facts;
  std::vector<std::string> list;
  const auto flag = [&](std::string_view name, bool value, bool usual = false) {
    if (value != usual) list.push_back(fmt::format(".{} = {}", name, value));
  };
  flag("scaled", f.scaled);
  flag("bounded", f.bounded);
  flag("masked", f.masked);
  flag("has_first", f.has_first);
  flag("has_last", f.has_last);
  flag("has_keep", f.has_keep);
  flag("keeps_by_fields", f.keeps_by_fields);
  flag("has_prob", f.has_prob);
  flag("linear_prob", f.linear_prob, true);
  flag("has_sink", f.has_sink);
  flag("skips", f.skips);
  flag("listed", f.listed);
  constexpr std::array<std::string_view, 4> peaks{"unknown", "ends", "diagonal", "columns"};
  if (parts.term) list.push_back(fmt::format(".peak = Peak::{}", peaks[static_cast<std::size_t>(f.peak)]));
  if (f.bounded)
    list.push_back(fmt::format(".most = {}", ir::print_literal(ir::Type::F32, static_cast<double>(f.most))));
  return source_traits("  static constexpr Traits traits{", list);
}

std::string gradient(const GpuParts& parts, const ir::Signature& signature, bool diagonals, Lines lines) {
  std::string out;
  out += source_function("float slope(float s, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)",
                         parts.slope(), signature, parts.fields, lines);
  out += source_function("float prob_slope(float p, Head head, Row row, Col col, Where at, Int q, Int kv)",
                         parts.prob_slope(), signature, parts.fields, lines);
  out += bands_function(
      {.head =
           "  __device__ Bands q_bands(Head head, Where at, Int q_begin, Int q_end, Int kv_begin, Int kv_end) const {",
       .bands = parts.cover().along_q,
       .begin = "int(q_begin)",
       .end = "int(q_end)"},
      parts, signature);
  return out + gradient_terms(parts, signature, diagonals);
}

bool has_own(const KernelPlan& plan, std::string_view member) {
  return std::ranges::any_of(plan.tile.own, [&](const auto& own) { return own.first == member && own.second != 0; });
}

/// The parts of an exponent that a kernel has for each pair already, as members of its argument `held`.
struct Held {
  bool copied, distant;
  explicit operator bool() const { return copied || distant; }
};

/// The exponent with such parts as parameters, whose names join the signature.
Expr with_held(const GpuParts& parts, Held held, ir::Signature& signature) {
  ir::DigestMap<Expr> by;
  const auto add = [&](const Expr& part, const char* name) {
    by.emplace(part->digest, ir::param(static_cast<std::uint32_t>(signature.params.size()), ir::Type::F32));
    signature.params.push_back({name, ir::Type::F32});
  };
  if (held.copied) add(parts.copied, "held.copied");
  if (held.distant) add(parts.distant, "held.distant");
  return by.empty() ? parts.exponent() : ir::substitute(parts.exponent(), by);
}

/// What a kernel copies: the captured tensor, and its elements for a row. See mod.cuh.
std::string copied_line(const GpuParts& parts, const ir::Signature& signature) {
  const Expr& read = parts.copied;
  const std::string name = signature.captures[read->bits].name;
  std::uint32_t uses = 0;
  std::string indices;
  for (std::size_t i = 0; i + 1 < read->arity; ++i) {
    uses |= source_uses(read->args[i]);
    indices += (i ? ", " : "") + source_value(read->args[i], signature, parts.fields);
  }
  const bool steps = has_linear_line(read);
  return fmt::format("  __device__ const auto& copied() const {{ return {0}; }}\n"
                     "  __device__ auto copied_line(Head head, Row row, Where at, Int q) const {{\n"
                     "{1}    return {0}.line({2});\n  }}\n"
                     "  __device__ bool copied_steps(Head head, Row row, Where at, Int q) const {{\n"
                     "{3}    return {4};\n  }}\n",
                     name, source_locals(uses, signature), indices, steps ? source_locals(uses, signature) : "",
                     steps ? fmt::format("{}.holds_line({})", name, indices) : "false");
}

std::string user(const GpuParts& parts, const KernelPlan& plan, Lines lines) {
  const Mod& mod = parts.mod();
  const Cover& cover = parts.cover();
  ir::Signature signature = source_signature(mod);
  signature.params.push_back({source_scale, ir::Type::F32});
  const auto function = [&](const std::string& head, const Expr& e) {
    return source_function(head, e, signature, parts.fields, lines);
  };
  const auto fields = [&](const std::string& head, const std::vector<Expr>& list) {
    return fields_function(head, list, signature, parts.fields, lines);
  };
  const std::string all_fields = fields_struct("Head", parts.levels.head, parts.fields[0]) +
                                 fields_struct("Row", parts.levels.row, parts.fields[1], alike_rows(parts)) +
                                 fields_struct("Col", parts.levels.col, parts.fields[2], shared_columns(parts));
  const Held held{.copied = parts.copied && has_own(plan, "copies"),
                  .distant = parts.distant && has_own(plan, "distances")};
  const Expr exponent = with_held(parts, held, signature);
  const std::vector<Expr> reads = linear_reads(std::array{exponent, parts.prob()});
  const bool inside = !reads.empty();
  std::string members = source_members(mod, source_signature(mod), plan.spec.offsets64, inside);
  const bool diagonals = leaves_diagonals(parts, plan);
  for (const std::string& sums : source_sums(parts, plan))
    members += fmt::format("  {}* {};\n", sums == "diagonals" ? "float" : "unsigned long long", sums);
  std::string out = inside ? fmt::format(
                                 "struct Fields {{\n{}}};\n\ntemplate <Reads reads>\nstruct UserOf : Fields {{\n{}\n"
                                 "  using Inside = UserOf<Reads::inside>;\n",
                                 all_fields, members)
                           : fmt::format("struct User {{\n{}\n{}", members, all_fields);
  out += traits(parts);
  if (parts.gradient) out += gradient_traits(*parts.gradient, diagonals);
  out += "\n";
  out += fields("Head head(Where at)", parts.levels.head);
  out += fields("Row row(Head head, Where at, Int q)", parts.levels.row);
  out += fields("Col col(Head head, Where at, Int origin, Int kv)", parts.levels.col);
  out += function("float factor(Head head)", parts.factor ? parts.factor : ir::real(0));
  out += function("float exponent(float s, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)",
                  parts.exponent());
  if (parts.term)
    out += function("float term(Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)", parts.term);
  if (held) {
    out += "  struct Held {\n    float copied, distant;\n  };\n";
    out += function("float exponent(float s, Held held, Head head, Row row, Col col, Where at, Int origin, Int q, "
                    "Int kv)",
                    exponent);
  }
  if (held.copied) out += copied_line(parts, signature);
  if (held.distant) out += function("float distant(Head head, Where at, Int q, Int kv)", parts.distant);
  out += function("float rest(Head head, Row row, Where at, Int origin, Int q)", parts.rest);
  out += function("Int first(Head head, Row row, Where at, Int q)", parts.first());
  out += function("Int last(Head head, Row row, Where at, Int q)", parts.last());
  out += function("bool keep(Head head, Row row, Col col, Where at, Int q, Int kv)", parts.keep());
  out += function("float prob(float p, Head head, Row row, Col col, Where at, Int q, Int kv)", parts.prob());
  out += function("float sink(Head head, Where at)", parts.sink ? parts.sink : ir::real(0));
  out += bands_function({.head = "  __device__ Bands bands(Head head, Where at, Int q_begin, Int q_end) const {",
                         .bands = cover.along_kv,
                         .begin = "0",
                         .end = "at.kv_len"},
                        parts, signature);
  if (parts.gradient) out += gradient(parts, signature, diagonals, lines);
  if (!inside) return out + "};\n";
  return out + inside_function(reads, signature, parts.fields) + "};\nusing User = UserOf<Reads::clamped>;\n";
}

/// True if a choice depends on a division or a function of positions, whose last bit may decide the choice.
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

/// The name of the argument type in namespace attune.
std::string args_type(const KernelPlan& plan) {
  const auto usual = [&]() -> std::string_view {
    switch (plan.args()) {
      case ArgsKind::forward: return "ForwardArgs";
      case ArgsKind::per_entry: return "PerEntryArgs";
      case ArgsKind::decode: return "DecodeArgs";
      case ArgsKind::mla: return "MlaArgs";
      case ArgsKind::backward: return "BackwardArgs";
    }
    throw Bug("a kernel gets arguments of no kind that is known");
  };
  const std::string_view type = plan.kernel->own ? plan.kernel->own->name : usual();
  return plan.further() ? fmt::format("attune::Further<attune::{}>", type) : fmt::format("attune::{}", type);
}

/// A source of one kernel of a device file, with a Mod.
Source source_of(const GpuParts& parts, const KernelPlan& plan, const std::string& kernel, const std::string& file,
                 std::string_view path) {
  const Mod& mod = parts.mod();
  const bool exact = plan.spec.exact || wants_exact(mod);
  const int arch = plan.spec.arch;
  const Tile& tile = plan.tile;
  const std::string space = exact ? "exact" : "fast";
  Source out{.name = kernel,
             .text = {},
             .options = source_options(arch, exact),
             .symbol = fmt::format("attune::{0}<attune::{1}::Tile, attune::{1}::User>", kernel, space),
             .facts = {{"arch", fmt::format("sm_{}", arch)},
                       {"type", std::string(name_of(plan.spec.dtype))},
                       {"d", tile.d == tile.dv ? std::to_string(tile.d) : fmt::format("{}/{}", tile.d, tile.dv)},
                       {"tile", fmt::format("{}x{}", tile.m, tile.n)}},
             .headers = plan.kernel->headers};
  for (auto& fact : mod.facts()) out.facts.push_back(std::move(fact));
  out.text = fmt::format("{}{}#include \"codegen/cuda/kernels/{}.cuh\"\n\nnamespace attune::{} {{\n\n",
                         source_comment(mod), plan.kernel->preamble ? plan.kernel->preamble(plan) : "", file, space);
  out.text += user(parts, plan, path.empty() ? Lines::no : Lines::yes);
  out.text += fmt::format("static_assert({}<User> && sizeof(User) == {});\n\n",
                          parts.gradient ? "Differentiable" : "Mod",
                          source_bytes(mod, plan.spec.offsets64, source_sums(parts, plan).size()));
  out.text += source_tile(plan) + fmt::format("\n}}  // namespace attune::{}\n\n", space);
  out.text += fmt::format("template __global__ void {}(\n    const __grid_constant__ {}, "
                          "const __grid_constant__ attune::{}::User);\n",
                          out.symbol, args_type(plan), space);
  if (path.empty()) return out;
  out.options.emplace_back(line_option);
  out.text = with_own_lines(out.text, path);
  return out;
}

}  // namespace

Source kernel_source(const GpuParts& parts, const KernelPlan& plan, std::string_view path) {
  ++written_so_far;
  const std::string name(plan.kernel->name);
  return source_of(parts, plan, name, name, path);
}

Source source_beside(const GpuParts& parts, const KernelPlan& plan, const std::string& kernel,
                     const std::string& file) {
  return source_of(parts, plan, kernel, file.empty() ? kernel : file, {});
}

std::size_t kernel_sources_written() { return written_so_far; }

}  // namespace attune::codegen
