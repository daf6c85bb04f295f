// codegen/source/user_source.cpp — struct User of a kernel's source in parts: what is the same for other mods, and what
// is not
#include "codegen/source/user_source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <fmt/format.h>

#include "codegen/choose/kernel.h"
#include "codegen/facts/reads.h"
#include "codegen/source/gradient_source.h"

namespace attune::codegen {
namespace {

using ir::Expr, ir::Input, ir::Level, ir::Op;
using Form = UserFunction::Form;

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

/// True if an integer is divided by anything but a power of two, which takes four instructions or more.
bool divide(std::span<const Expr> fields) {
  const std::vector<Expr> nodes = ir::in_order(fields);
  return std::ranges::any_of(nodes, [](const Expr& e) {
    const bool divides = e->op == Op::Div || e->op == Op::Rem || e->op == Op::FloorDiv || e->op == Op::FloorMod;
    if (!divides || e->type != ir::Type::I32) return false;
    return !ir::is_literal(e->args[1]) ||
           !std::has_single_bit(static_cast<std::uint32_t>(ir::literal_value(*e->args[1])));
  });
}

/// The functions with which lanes share what a column reads of captured tensors, or a quotient of the column that a
/// mask needs; see mod.cuh.
std::string shared_columns(const GpuParts& parts) {
  const bool in_scores = ask_columns(std::array{parts.exponent(), parts.prob()});
  if (!read_captures(parts.levels.col) && (in_scores || !divide(parts.levels.col))) return {};
  return fmt::format("    static constexpr bool in_scores = {};\n", in_scores) + of_lane("Col", parts.fields[2]);
}

/// The function that is true if a tile's reads need no clamping.
UserFunction inside_function(std::span<const Expr> reads, const ir::Signature& signature,
                             const ir::FieldNames& fields) {
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
  std::string head = "bool is_inside(Head head, Where at, Int q_begin, Int q_end, Int kv_begin, Int kv_end)";
  std::string text = fmt::format(
      "  __device__ {} const {{\n{}    return at_corners(q_begin, q_end, kv_begin, kv_end, [&](Int q, Int kv) {{\n"
      "      return {};\n    }});\n  }}\n",
      head, source_locals(uses, signature), holds);
  return {std::move(head), std::move(text), Form::open};
}

/// The function that returns which positions of an axis a tile of the other axis visits, between these two ends. Tiles
/// come from lists or from exact bands; otherwise every tile counts as partial.
struct BandsFunction {
  std::string head;
  const compiler::Bands& bands;
  std::string_view begin, end;
};

UserFunction bands_function(const BandsFunction& of, const GpuParts& parts, const ir::Signature& signature) {
  const compiler::Bands& bands = of.bands;
  const auto one_line = [&](std::string_view value) {
    return UserFunction{of.head, fmt::format("  __device__ {} const {{ return {{{}}}; }}\n", of.head, value)};
  };
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
  return {of.head,
          fmt::format("  __device__ {} const {{\n{}    Bands out{{{}, {}, {}}};\n{}    return out;\n  }}\n", of.head,
                      source_locals(uses, signature), ends, of.begin, of.end, cuts),
          Form::open};
}

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
  if (f.keep_block > 0) list.push_back(fmt::format(".keep_block = {}", f.keep_block));
  flag("has_prob", f.has_prob);
  if (f.degree != 1)
    list.push_back(fmt::format(".degree = {}", ir::print_literal(ir::Type::F32, static_cast<double>(f.degree))));
  flag("keeps_zero", f.keeps_zero, true);
  flag("drops", f.drops);
  flag("has_sink", f.has_sink);
  flag("skips", f.skips);
  flag("listed", f.listed);
  if (f.bounded)
    list.push_back(fmt::format(".most = {}", ir::print_literal(ir::Type::F32, static_cast<double>(f.most))));
  constexpr std::array<std::string_view, 4> peaks{"unknown", "ends", "diagonal", "columns"};
  if (parts.term) list.push_back(fmt::format(".peak = Peak::{}", peaks[static_cast<std::size_t>(f.peak)]));
  return source_traits("  static constexpr Traits traits{", list);
}

/// True if many mods have the same text here: the literal 0 or 1, or the unchanged p.
bool is_alike(const Expr& e) {
  return ir::is_literal(e, 0) || ir::is_literal(e, 1) ||
         (e->op == Op::Input && e->bits == static_cast<std::uint32_t>(Input::P));
}

/// True if only fields are compared here, as in `row.doc == col.doc`. A skeleton keeps such a mask: mods that differ in
/// more than names seldom share the skeleton, and a place would have to move the result out of a predicate.
bool compares_fields(const Expr& e) {
  const std::vector<Expr> nodes = ir::in_order(e);
  return std::ranges::all_of(
      nodes, [](const Expr& one) { return one->op == Op::Field || (one->type == ir::Type::Bool && one->arity > 0); });
}

/// What a kernel copies: the nth captured tensor, and its elements for a row. See mod.cuh.
std::string copied_line(int nth, const Expr& read, const GpuParts& parts, const ir::Signature& signature) {
  const std::string name = signature.captures[read->bits].name;
  std::uint32_t uses = 0;
  std::string indices;
  for (std::size_t i = 0; i + 1 < read->arity; ++i) {
    uses |= source_uses(read->args[i]);
    indices += (i ? ", " : "") + source_value(read->args[i], signature, parts.fields);
  }
  const bool steps = has_linear_line(read);
  return fmt::format("  __device__ const auto& copied(Nth<{5}>) const {{ return {0}; }}\n"
                     "  __device__ auto copied_line(Nth<{5}>, Head head, Row row, Where at, Int q) const {{\n"
                     "{1}    return {0}.line({2});\n  }}\n"
                     "  __device__ bool copied_steps(Nth<{5}>, Head head, Row row, Where at, Int q) const {{\n"
                     "{3}    return {4};\n  }}\n",
                     name, source_locals(uses, signature), indices, steps ? source_locals(uses, signature) : "",
                     steps ? fmt::format("{}.holds_line({})", name, indices) : "false", nth);
}

/// Writes the functions of expressions, and notes which of them kernels call.
class Functions {
 public:
  Functions(const GpuParts& parts, Held held, Lines lines)
      : parts_(parts), held_(held), lines_(lines), signature_(source_signature(parts.mod())) {
    signature_.params.push_back({source_scale, ir::Type::F32});
    for (int nth = 0; nth < held_.copied; ++nth) hold(copied(nth), nth == 0 ? "held.copied" : "held.copied_second");
    if (held_.distant) hold(parts_.distant, "held.distant");
    if (held_.tanh) hold(parts_.tanh, "held.tanh");
    exponent_ = with_held(parts_.exponent());
  }

  const ir::Signature& signature() const { return signature_; }
  /// The exponent with the held parts as parameters.
  const Expr& exponent() const { return exponent_; }
  /// What tanh_of() returns, if there is one.
  Expr tanh_argument() const { return held_.tanh ? parts_.tanh->args[0] : ir::real(0); }
  std::vector<UserFunction> take() { return std::move(out_); }

  void forward() {
    const Traits& facts = parts_.facts;
    fields("Head head(Where at)", parts_.levels.head);
    fields("Row row(Head head, Where at, Int q)", parts_.levels.row);
    fields("Col col(Head head, Where at, Int origin, Int kv)", parts_.levels.col);
    add("float factor(Head head)", parts_.factor ? parts_.factor : ir::real(0), facts.scaled);
    add("float exponent(float s, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)", parts_.exponent(),
        !facts.scaled);
    if (parts_.term) add("float term(Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)", parts_.term);
    if (held_) held();
    add("float rest(Head head, Row row, Where at, Int origin, Int q)", parts_.rest);
    add("Int first(Head head, Row row, Where at, Int q)", parts_.first(), facts.has_first);
    add("Int last(Head head, Row row, Where at, Int q)", parts_.last(), facts.has_last);
    add("bool keep(Head head, Row row, Col col, Where at, Int q, Int kv)", parts_.keep(), facts.has_keep);
    add("float prob(float p, Head head, Row row, Col col, Where at, Int q, Int kv)", parts_.prob(), facts.has_prob);
    if (facts.drops) {
      add("Int drop_seed(Head head, Where at)", parts_.drop_seed());
      // If dropout's share is known, the skeleton contains it, because each known bit saves instructions.
      add("Int drop_share(Head head, Where at)", parts_.drop_share(), true, ir::is_literal(parts_.drop_share()));
      add("float drop_factor(Head head)", parts_.drop_factor());
    }
    add("float sink(Head head, Where at)", parts_.sink ? parts_.sink : ir::real(0), facts.has_sink);
    out_.push_back(bands_function({.head = "Bands bands(Head head, Where at, Int q_begin, Int q_end)",
                                   .bands = parts_.cover().along_kv,
                                   .begin = "0",
                                   .end = "at.kv_len"},
                                  parts_, signature_));
  }
  void backward() {
    add("float slope(float s, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)", parts_.slope(),
        parts_.gradient->has_slope);
    if (held_ && parts_.gradient->has_slope)
      add("float slope(float s, Held held, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)",
          with_held(parts_.slope()));
    add("float prob_slope(float p, Head head, Row row, Col col, Where at, Int q, Int kv)", parts_.prob_slope(),
        parts_.facts.has_prob);
    out_.push_back(
        bands_function({.head = "Bands q_bands(Head head, Where at, Int q_begin, Int q_end, Int kv_begin, Int kv_end)",
                        .bands = parts_.cover().along_q,
                        .begin = "int(q_begin)",
                        .end = "int(q_end)"},
                       parts_, signature_));
  }

 private:
  /// Adds a held part to the signature, as a parameter called `name`.
  void hold(const Expr& part, const char* name) {
    as_held_.emplace(part->digest, ir::param(static_cast<std::uint32_t>(signature_.params.size()), ir::Type::F32));
    signature_.params.push_back({name, ir::Type::F32});
  }
  Expr with_held(const Expr& e) const { return as_held_.empty() ? e : ir::substitute(e, as_held_); }
  const Expr& copied(int nth) const { return parts_.copied[static_cast<std::size_t>(nth)]; }
  void held() {
    add("float exponent(float s, Held held, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)",
        exponent_);
    for (int nth = 0; nth < held_.copied; ++nth)
      out_.push_back({.head = {}, .text = copied_line(nth, copied(nth), parts_, signature_)});
    if (held_.distant) add("float distant(Head head, Where at, Int q, Int kv)", parts_.distant);
    if (held_.tanh)
      add("float tanh_of(float s, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)", tanh_argument());
  }
  void add(const std::string& head, const Expr& e, bool used = true, bool stays = false) {
    out_.push_back({head, source_function(head, e, signature_, parts_.fields, lines_),
                    stays || is_alike(e) || (e->type == ir::Type::Bool && compares_fields(e)) ? Form::same
                    : used                                                                    ? Form::open
                                                                                              : Form::unused});
  }
  void fields(const std::string& head, const std::vector<Expr>& list) {
    out_.push_back(
        {head, fields_function(head, list, signature_, parts_.fields, lines_), list.empty() ? Form::same : Form::open});
  }

  const GpuParts& parts_;
  Held held_;
  Lines lines_;
  ir::Signature signature_;
  ir::DigestMap<Expr> as_held_;
  Expr exponent_;
  std::vector<UserFunction> out_;
};

}  // namespace

Held held_by(const GpuParts& parts, const KernelPlan& plan) {
  const auto of = [&](std::string_view member) {
    const auto found = std::ranges::find(plan.tile.own, member, [](const auto& own) { return own.first; });
    return found == plan.tile.own.end() ? 0 : found->second;
  };
  return {.copied = std::min(of("copies"), parts.facts.copied_reads),
          .distant = parts.distant && of("distances"),
          .tanh = parts.tanh && of("small_tanh")};
}

UserSource user_source(const GpuParts& parts, const KernelPlan& plan, Lines lines) {
  Functions functions(parts, held_by(parts, plan), lines);
  // Backwards clamp every read, so that one skeleton serves all indices.
  std::vector<Expr> reads;
  if (!parts.gradient) reads = linear_reads(std::array{functions.exponent(), functions.tanh_argument(), parts.prob()});
  UserSource out;
  out.fields = fields_struct("Head", parts.levels.head, parts.fields[0]) +
               fields_struct("Row", parts.levels.row, parts.fields[1], alike_rows(parts)) +
               fields_struct("Col", parts.levels.col, parts.fields[2], shared_columns(parts));
  if (const Held held = held_by(parts, plan))
    out.fields += fmt::format("  struct Held {{\n    float copied, distant, tanh{};\n  }};\n",
                              held.copied > 1 ? ", copied_second" : "");
  out.members = source_members(parts.mod(), source_signature(parts.mod()), plan.spec.strides.offsets64, !reads.empty());
  for (const std::string& sums : source_sums(parts, plan))
    out.members += fmt::format("  {}* {};\n", sums == "diagonals" ? "float" : "unsigned long long", sums);
  if (leaves_ds(parts, plan))
    out.members += fmt::format("  StoredDs stored_ds;\n  SumOfDs sums_of_ds[{}];\n", parts.gradient->ds.size());
  out.traits = traits(parts);
  functions.forward();
  if (parts.gradient) {
    out.traits += gradient_traits(*parts.gradient, sums_whole(plan));
    functions.backward();
    out.terms = gradient_terms(parts, functions.signature(), plan);
  }
  if (!reads.empty()) out.is_inside = inside_function(reads, functions.signature(), parts.fields);
  out.functions = functions.take();
  return out;
}

std::string UserSource::text() const {
  std::string out = is_inside ? fmt::format(
                                    "struct Fields {{\n{}}};\n\ntemplate <Reads reads>\nstruct UserOf : Fields {{\n{}\n"
                                    "  using Inside = UserOf<Reads::inside>;\n",
                                    fields, members)
                              : fmt::format("struct User {{\n{}\n{}", members, fields);
  out += traits + "\n";
  for (const UserFunction& one : functions) out += one.text;
  out += terms;
  return out + (is_inside ? is_inside->text + "};\nusing User = UserOf<Reads::clamped>;\n" : "};\n");
}

}  // namespace attune::codegen
