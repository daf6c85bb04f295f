// codegen/source/skeleton.cpp — a kernel's source in two: a skeleton with places for a mod's functions, the same for
// all mods of a tile and its traits, and these functions alone
#include "codegen/source/skeleton.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <vector>

#include <attune/error.h>

#include "codegen/choose/kernel.h"
#include "codegen/source/gradient_source.h"
#include "codegen/source/user_source.h"

namespace attune::codegen {
namespace {

using Form = UserFunction::Form;

/// A register that a place reads or writes.
struct Operand {
  char constraint;   ///< of inline PTX: f or r
  std::string from;  ///< read: what the skeleton puts in
  std::string type() const { return constraint == 'f' ? "float" : "int"; }
};

/// A function's head in parts.
struct HeadParts {
  std::string result, name;
  std::vector<std::pair<std::string, std::string>> arguments;  ///< type and name
};
HeadParts parts_of(std::string_view head) {
  const auto word = [&](char end) {
    const std::size_t at = head.find(end);
    const std::string out(head.substr(0, at));
    head.remove_prefix(at + 1);
    return out;
  };
  HeadParts out;
  out.result = word(' ');
  out.name = word('(');
  while (!head.empty() && head != ")") {
    std::string type = word(' ');
    const std::size_t end = head.find_first_of(",)");
    out.arguments.emplace_back(std::move(type), std::string(head.substr(0, end)));
    head.remove_prefix(std::min(end + (head[end] == ',' ? 2 : 1), head.size()));
  }
  return out;
}

/// Writes the two sources of a kernel.
class Split {
 public:
  Split(const GpuParts& parts, const KernelPlan& plan)
      : parts_(renamed(parts)), plan_(plan), held_(held_by(parts, plan)) {}

  SplitSource out() {
    const std::string kernel(plan_.kernel->name);
    const bool diagonals = leaves_diagonals(parts_, plan_);
    UserSource mine = user_source(parts_, plan_, Lines::no);
    // Kernels that add up terms themselves are not spliced.
    if (parts_.gradient) mine.terms = no_terms();
    inside_ = mine.is_inside.has_value();
    UserSource shared = mine;
    if (parts_.facts.bounded) {
      // One skeleton for all bounds: most_of() in cuda/contract/mod.cuh.
      mine.functions.push_back(
          {"float most()", "  __device__ float most() const { return traits.most; }\n", Form::open});
      GpuParts any = parts_;
      any.facts.most = 0;
      shared.traits = user_source(any, plan_, Lines::no).traits;
      shared.functions.push_back(mine.functions.back());
    }
    // Only sums along diagonals are read by the kernel itself, so only there it matters where they are.
    const std::size_t bytes = source_bytes(parts_.mod(), plan_.spec.strides.offsets64,
                                           source_sums(parts_, plan_).size());
    shared.members = diagonals ? fmt::format("  alignas(8) unsigned char bytes[{}];\n  float* diagonals;\n", bytes - 8)
                               : "  alignas(8) unsigned char bytes[8];\n";
    shared.members += "  static constexpr bool has_places = true;\n";
    for (UserFunction& one : shared.functions) one.text = in_skeleton(one);
    if (shared.is_inside) shared.is_inside->text = in_skeleton(*shared.is_inside);
    SplitSource out;
    out.skeleton = source_around({{}, shared.text(), diagonals ? bytes : 8}, parts_, plan_, kernel, kernel);
    out.mod = alone(mine);
    return out;
  }

 private:
  /// Names the fields f0, f1 and so on, so that a skeleton does not contain the names of a user's tensors.
  static GpuParts renamed(GpuParts parts) {
    for (std::vector<std::string>& level : parts.fields)
      for (std::size_t i = 0; i < level.size(); ++i) level[i] = fmt::format("f{}", i);
    return parts;
  }

  /// The functions that add up gradients of captured tensors, for a mod without such gradients.
  std::string no_terms() const {
    GpuParts none = parts_;
    none.gradient->terms.clear();
    none.gradient->of_sink.clear();
    return gradient_terms(none, source_signature(none.mod()), plan_);
  }

  /// The name of a function's place. Two functions are named exponent: the one that takes parts of the score that a
  /// kernel already has gets another name.
  static std::string place_of(const HeadParts& of) {
    const bool held = std::ranges::any_of(of.arguments, [](const auto& one) { return one.first == "Held"; });
    return of.name + (held ? "_of_held" : "");
  }
  bool has_variants(const std::string& name) const {
    return inside_ && (name == "exponent" || name == "prob" || name == "tanh_of");
  }
  const std::vector<ir::Expr>& level(const std::string& type) const {
    return type == "Head" ? parts_.levels.head : type == "Row" ? parts_.levels.row : parts_.levels.col;
  }

  /// The registers of a value of this type.
  std::vector<Operand> operands(const std::string& type, const std::string& name) const {
    if (type == "float") return {{'f', name}};
    if (type == "bool") return {{'r', fmt::format("int({})", name)}};
    if (type == "Int") return {{'r', name + ".base"}, {'r', name + ".step"}};
    std::vector<Operand> out;
    if (type == "Held") {
      if (held_.distant) out.push_back({'f', name + ".distant"});
      if (held_.tanh) out.push_back({'f', name + ".tanh"});
      return out;
    }
    const auto members = [&](std::initializer_list<const char*> list) {
      for (const char* one : list) out.push_back({'r', fmt::format("{}.{}", name, one)});
      return out;
    };
    if (type == "Where") return members({"b", "h", "q_len", "kv_len"});
    if (type == "Bands") return members({"begin", "end", "full_begin", "full_end"});
    std::size_t nth = 0;
    for (const ir::Expr& field : level(type))
      for (Operand& one : operands(device_type(field->type).data(), fmt::format("{}.f{}", name, nth++)))
        out.push_back(std::move(one));
    return out;
  }
  /// The text that makes the value again from variables x<next> and on; moves `next` past them.
  std::string value(const std::string& type, std::size_t& next) const {
    const auto one = [&] { return fmt::format("x{}", next++); };
    if (type == "float") return one();
    if (type == "bool") return one() + " != 0";
    if (type == "Held") {
      const std::string distant = held_.distant ? one() : "0";
      return fmt::format("{{0, {}, {}}}", distant, held_.tanh ? one() : "0");
    }
    std::string out;
    const auto list = [&](std::size_t count, const auto& each) {
      for (std::size_t i = 0; i < count; ++i) out += (i ? ", " : "") + each(i);
      return fmt::format("{}{{{}}}", type, out);
    };
    if (type == "Int") return list(2, [&](std::size_t) { return one(); });
    if (type == "Where" || type == "Bands") return list(4, [&](std::size_t) { return one(); });
    return list(level(type).size(),
                [&](std::size_t i) { return value(device_type(level(type)[i]->type).data(), next); });
  }

  /// The function with a place for that of a mod.
  std::string in_skeleton(const UserFunction& one) const {
    if (one.form == Form::same) return one.text;
    if (one.form == Form::unused) return fmt::format("  __device__ {} const {{ return {{}}; }}\n", one.head);
    const HeadParts of = parts_of(one.head);
    std::string variables, places, inputs, outputs;
    std::size_t count = 0;
    for (const Operand& out : operands(of.result, "out")) {
      variables += fmt::format(" {} x{};", out.type(), count);
      outputs += fmt::format("{}\"={}\"(x{})", count ? ", " : "", out.constraint, count);
      places += fmt::format("{}%{}", count ? ", " : " ", count);
      ++count;
    }
    const std::size_t results = count;
    for (const auto& [type, name] : of.arguments)
      for (const Operand& in : operands(type, name)) {
        inputs += fmt::format("{}\"{}\"({})", count > results ? ", " : "", in.constraint, in.from);
        places += fmt::format(", %{}", count++);
      }
    const auto place = [&](const std::string& name) {
      return fmt::format("asm(\"{}{}{};\" : {} : {});", place_prefix, name, places, outputs, inputs);
    };
    const std::string name = place_of(of);
    const std::string body = has_variants(of.name)
                                 ? fmt::format("if constexpr (reads == Reads::inside)\n      {}\n    else\n      {}",
                                               place(name + std::string(inside_suffix)), place(name))
                                 : place(name);
    std::size_t next = 0;
    return fmt::format("  __device__ {} const {{\n   {}\n    {}\n    return {};\n  }}\n", one.head, variables, body,
                       value(of.result, next));
  }

  /// "User::" for the types that User declares.
  static std::string_view scope_of(const std::string& type) {
    return type == "Head" || type == "Row" || type == "Col" ? "User::" : "";
  }

  /// The mod's functions, each as a kernel that takes its arguments from places and leaves its result in places.
  std::string called(const UserFunction& one, bool inside) const {
    const HeadParts of = parts_of(one.head);
    std::string out = fmt::format("extern \"C\" __global__ void {}{}{}(const __grid_constant__ User user) {{\n",
                                  mod_prefix, place_of(of), inside ? inside_suffix : "");
    std::size_t count = 0, next = 0;
    std::string arguments;
    for (const auto& [type, name] : of.arguments) {
      for (const Operand& in : operands(type, name)) {
        out += fmt::format("  {} x{};\n  asm volatile(\"{} %0, {};\" : \"={}\"(x{}));\n", in.type(), count, place_in,
                           count, in.constraint, count);
        ++count;
      }
      arguments += fmt::format("{}{}{}", arguments.empty() ? "" : ", ", scope_of(type), value(type, next));
    }
    out += fmt::format("  const {}{} out = {}.{}({});\n", scope_of(of.result), of.result,
                       inside ? "reinterpret_cast<const User::Inside&>(user)" : "user", of.name, arguments);
    count = 0;
    for (const Operand& x : operands(of.result, "out"))
      out += fmt::format("  asm volatile(\"{} {}, %0;\" :: \"{}\"({}));\n", place_out, count++, x.constraint, x.from);
    return out + "}\n";
  }

  Source alone(const UserSource& user) const {
    const std::string space = source_space(parts_, plan_);
    Source out{.name = std::string(plan_.kernel->name) + "_mod",
               .text = {},
               .options = source_options(plan_.spec.arch, space == "exact"),
               .symbol = {}};
    out.text = fmt::format("#include \"codegen/cuda/contract/{}.cuh\"\n\nnamespace attune::{} {{\n\n",
                           parts_.gradient ? "gradient" : "mod", space);
    out.text += user.text() + "\n";
    const auto add = [&](const UserFunction& one) {
      if (one.form != Form::open) return;
      out.text += called(one, false);
      if (has_variants(parts_of(one.head).name)) out.text += called(one, true);
    };
    for (const UserFunction& one : user.functions) add(one);
    if (user.is_inside) add(*user.is_inside);
    out.text += fmt::format("\n}}  // namespace attune::{}\n", space);
    return out;
  }

  GpuParts parts_;
  const KernelPlan& plan_;
  Held held_;
  bool inside_ = false;
};

}  // namespace

SplitSource split_source(const GpuParts& parts, const KernelPlan& plan) { return Split(parts, plan).out(); }

std::string why_not_spliced(const GpuParts& parts, const KernelPlan& plan) {
  if (plan.kernel->spliced == Spliced::never) return fmt::format("{} has no skeleton", plan.kernel->name);
  // Most values in such a kernel are the same for many pairs. Only the compiler sees that, and only if it compiles the
  // kernel as a whole.
  if (!ir::uses(parts.exponent(), ir::Input::S)) return "its scores do not depend on s";
  if (held_by(parts, plan).copied) return "the kernel copies parts of its scores ahead";
  if (leaves_ds(parts, plan)) return "the kernel stores dS";
  const bool along_diagonals = leaves_diagonals(parts, plan) && parts.gradient->of_sink.empty() &&
                               parts.gradient->summed_by(Term::Sum::diagonal, true).size() ==
                                   parts.gradient->terms.size();
  if (parts.facts.has_terms && !along_diagonals) return "the kernel itself adds up gradients of captured tensors";
  return {};
}

}  // namespace attune::codegen
