// compiler/spell.cpp — a Mod as text that parses back to it, for commands and files; an expression as a C++ lambda and
// a Python function
#include "compiler/spell.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/print.h"

namespace attune::compiler {
namespace {

/// An expression that reads all captures and parameters no other expression reads; empty if there are none.
std::string unread(const Mod& mod, const ir::Signature& names) {
  std::vector<bool> captures(mod.captures.size()), params(mod.params.size());
  for (const ir::Expr& e : ir::in_order(std::array{mod.score, mod.mask, mod.prob, mod.sink})) {
    if (e->op == ir::Op::Read) captures[e->bits] = true;
    if (e->op == ir::Op::Param) params[e->bits] = true;
  }
  std::string out;
  const auto add = [&](ir::Type type, const std::string& value) {
    out += (out.empty() ? "" : " + ") + (type == ir::Type::F32 ? value : "f32(" + value + ")");
  };
  for (std::size_t i = 0; i < captures.size(); ++i) {
    if (captures[i]) continue;
    std::string index;
    for (int d = 0; d < mod.captures[i].rank; ++d) index += d ? ", 0" : "0";
    add(names.captures[i].type, mod.captures[i].name + "[" + index + "]");
  }
  for (std::size_t i = 0; i < params.size(); ++i)
    if (!params[i]) add(mod.params[i].type, mod.params[i].name);
  return out;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Spelt::named() const {
  std::vector<std::pair<std::string, std::string>> out{
      {"score", score}, {"mask", mask}, {"prob", prob}, {"sink", sink}};
  std::erase_if(out, [](const auto& one) { return one.second.empty(); });
  return out;
}

Spelt spell(const Mod& mod) {
  const ir::Signature names = mod.signature();
  const auto text = [&](const ir::Expr& e, bool usual) { return usual ? std::string() : ir::print(e, names); };
  Spelt out{.score = text(mod.score, mod.score->op == ir::Op::Input),
            .mask = text(mod.mask, ir::is_literal(mod.mask, 1)),
            .prob = text(mod.prob, mod.prob->op == ir::Op::Input),
            .sink = text(mod.sink, !mod.sink)};
  // Slots are numbered in order of first use, so the unread ones must come last.
  if (const std::string rest = unread(mod, names); !rest.empty()) {
    std::string& last = mod.sink ? out.sink : out.prob;
    const std::size_t lets = last.rfind(';') == std::string::npos ? 0 : last.rfind(';') + 1;
    const std::string value = last.substr(lets);
    last = last.substr(0, lets) + "where(true, " + (value.empty() ? "p" : value) + ", " + rest + ")";
  }
  return out;
}

namespace {

using ir::Expr, ir::Op;

/// Expressions that are longer as a tree, or deeper, are not readable.
constexpr std::uint32_t most_readable_nodes = 600, most_readable_depth = 60;
/// A part that is used twice gets a name if it has as many nodes as this.
constexpr std::uint32_t worth_a_name = 5;

/// Names that captures and parameters of these functions cannot have.
constexpr std::array words_of_languages{"at",     "s",      "p",      "i",     "j",     "attune", "and",   "as",
                                        "auto",   "bool",   "case",   "char",  "class", "const",  "def",   "del",
                                        "do",     "double", "else",   "float", "for",   "from",   "if",    "in",
                                        "int",    "is",     "lambda", "long",  "new",   "not",    "or",    "pass",
                                        "return", "short",  "this",   "true",  "try",   "void",   "while", "with"};

/// The precedence of an operator; 0: a function.
int bind(const Expr& e, Language language) {
  const Op op = e->op;
  const int own = ir::row(op).bind;
  if (language == Language::cpp) return own;
  // In Python, comparisons have lower precedence than bit operators, which also stand for && and ||; / and % round
  // down.
  if (op == Op::Or) return 4;
  if (op == Op::And) return 6;
  if (own == 7 || own == 8) return 1;
  const bool rounds_down = op == Op::Rem || (op == Op::Div && e->type == ir::Type::I32);
  return rounds_down ? 0 : own;
}

class Writer {
 public:
  Writer(const ir::Signature& names, Language language) : names_(names), language_(language) {}

  /// Returns false if the expression cannot be written.
  bool write(const Expr& root) {
    if (root->size > most_readable_nodes || root->depth > most_readable_depth) return false;
    outermost_ = root->binder;
    const std::vector<Expr> nodes = ir::in_order(root);
    for (const Expr& node : nodes)
      for (const Expr& argument : node->arguments()) ++uses_[argument->digest];
    for (const Expr& node : nodes)
      if (node != root && uses_[node->digest] > 1 && node->size >= worth_a_name && !node->free) {
        const std::string name = fmt::format("x{}", named_.size() + 1);
        const std::string value = text(node, 0);
        lets_.push_back(is_cpp() ? fmt::format("const {} {} = {};", type(node), name, value)
                                 : fmt::format("{} = {}", name, value));
        named_.emplace(node->digest, name);
      }
    value_ = text(root, 0);
    // A literal alone would have a type of C++, not Float, Int or Bool.
    if (is_cpp() && ir::is_literal(root)) value_ = fmt::format("{}({})", type(root), value_);
    return fine_;
  }

  const std::vector<std::string>& lets() const { return lets_; }
  const std::string& value() const { return value_; }

 private:
  bool is_cpp() const { return language_ == Language::cpp; }

  static std::string_view type(const Expr& e) {
    return e->type == ir::Type::F32 ? "Float" : e->type == ir::Type::I32 ? "Int" : "Bool";
  }

  std::string own(const std::string& name) {
    if (std::find(words_of_languages.begin(), words_of_languages.end(), name) != words_of_languages.end())
      fine_ = false;
    return name;
  }

  /// `least`: how tightly the surroundings bind. A text that binds more loosely gets brackets.
  std::string text(const Expr& e, int least) {
    if (const auto named = named_.find(e->digest); named != named_.end()) return named->second;
    switch (e->op) {
      case Op::Literal: return literal(e);
      case Op::Input: return input(static_cast<ir::Input>(e->bits));
      case Op::Param: return own(names_.params[e->bits].name);
      case Op::Read: return read(e);
      case Op::Bound: return variable(e->bits);
      case Op::Sum: return sum(e);
      case Op::Field: fine_ = false; return {};
      default: return applied(e, least);
    }
  }

  std::string literal(const Expr& e) const {
    const double value = ir::literal_value(*e);
    std::string out = ir::print_literal(e->type, value);
    if (e->type == ir::Type::F32 && !std::isfinite(value)) {
      if (!is_cpp()) return "float(\"" + out + "\")";
      const char* const what = std::isinf(value) ? "infinity" : "quiet_NaN";
      return fmt::format("{}std::numeric_limits<float>::{}()", value < 0 ? "-" : "", what);
    }
    if (is_cpp()) return out;
    if (e->type == ir::Type::F32) out.pop_back();
    return e->type != ir::Type::Bool ? out : value != 0 ? "True" : "False";
  }

  static std::string input(ir::Input which) {
    switch (which) {
      case ir::Input::B: return "at.batch";
      case ir::Input::H: return "at.head";
      case ir::Input::S:
      case ir::Input::P: return std::string(ir::input_names[static_cast<std::size_t>(which)]);
      default: return "at." + std::string(ir::input_names[static_cast<std::size_t>(which)]);
    }
  }

  std::string read(const Expr& e) {
    const std::string name = own(names_.captures[e->bits].name);
    const bool square = !is_cpp() || e->arity == 1;
    std::string index = e->arity == 0 && !is_cpp() ? "()" : list(e);
    return name + (square ? "[" + index + "]" : "(" + index + ")");
  }

  std::string list(const Expr& e) {
    std::string out;
    for (const Expr& argument : e->arguments()) out += (out.empty() ? "" : ", ") + text(argument, 0);
    return out;
  }

  /// The outermost sum has the largest binder; its variable is i.
  std::string variable(std::uint32_t binder) const {
    const std::uint32_t depth = outermost_ - binder;
    return depth == 0 ? "i" : depth == 1 ? "j" : fmt::format("i{}", depth);
  }

  std::string sum(const Expr& e) {
    const std::string i = variable(ir::sum_binder(*e)), body = text(e->args[0], 0);
    return is_cpp() ? fmt::format("sum({}, [=](Int {}) {{ return {}; }})", ir::sum_count(*e), i, body)
                    : fmt::format("attune.sum({}, lambda {}: {})", ir::sum_count(*e), i, body);
  }

  /// C++ and Python compute with numbers alone before attune sees them.
  bool is_of_literals(const Expr& e) const {
    return std::all_of(e->arguments().begin(), e->arguments().end(), [](const Expr& a) { return ir::is_literal(a); });
  }

  std::string applied(const Expr& e, int least) {
    if (is_of_literals(e) && !ir::draws(e->op)) fine_ = false;
    const int own = bind(e, language_);
    if (own == 0) return function(e);
    const std::string spelt = spelling(e->op);
    std::string out;
    if (e->arity == 1) {
      out = spelt + text(e->args[0], own);
    } else {
      // Brackets also where compilers warn or people would read twice: bits, shifts, comparisons of comparisons.
      const int of_language = ir::row(e->op).bind;
      const bool bits = of_language >= 4 && of_language <= 6, shift = of_language == 9;
      const bool comparison = of_language == 7 || of_language == 8;
      const int left = bits || shift ? 12 : comparison ? 9 : e->op == Op::Or ? own + 2 : own;
      const int right = bits || shift ? 12 : comparison ? 9 : e->op == Op::Or ? own + 2 : own + 1;
      out = fmt::format("{} {} {}", text(e->args[0], left), spelt, text(e->args[1], right));
    }
    return own < least ? "(" + out + ")" : out;
  }

  std::string spelling(Op op) const {
    if (!is_cpp() && op == Op::And) return "&";
    if (!is_cpp() && op == Op::Or) return "|";
    if (!is_cpp() && op == Op::Not) return "~";
    return std::string(ir::row(op).spelling);
  }

  std::string function(const Expr& e) {
    std::string name(ir::row(e->op).spelling);
    if (e->op == Op::Rem) name = "truncmod";
    if (e->op == Op::Div) name = "truncdiv";
    return (is_cpp() ? "" : "attune.") + name + "(" + list(e) + ")";
  }

  const ir::Signature& names_;
  Language language_;
  bool fine_ = true;
  std::uint32_t outermost_ = 0;
  ir::DigestMap<int> uses_;
  ir::DigestMap<std::string> named_;
  std::vector<std::string> lets_;
  std::string value_;
};

}  // namespace

std::string lambda(const ir::Expr& root, std::string_view part, const ir::Signature& names, Language language) {
  Writer writer(names, language);
  if (!writer.write(root)) return {};
  const bool cpp = language == Language::cpp;
  const std::string value = part == "score" ? "s" : part == "prob" ? "p" : "";
  const std::uint32_t own = bit(part == "score" ? ir::Input::S : ir::Input::P);
  if (cpp) {
    // Unused parameters have no name, since compilers warn about them.
    std::uint32_t uses = 0;
    for (const Expr& node : ir::in_order(root))
      if (node->op == Op::Input) uses |= node->uses;
    const std::string at = uses & ~(bit(ir::Input::S) | bit(ir::Input::P)) ? " at" : "";
    const std::string first = value.empty() ? "" : "Float" + (uses & own ? " " + value : "") + ", ";
    const std::string takes = first + (part == "sink" ? "SinkAt" : "At") + at;
    if (writer.lets().empty()) return fmt::format("[=]({}) {{ return {}; }}", takes, writer.value());
    return fmt::format("[=]({}) {{\n  {}\n  return {};\n}}", takes, fmt::join(writer.lets(), "\n  "), writer.value());
  }
  const std::string takes = value.empty() ? "at" : value + ", at";
  if (writer.lets().empty()) return fmt::format("lambda {}: {}", takes, writer.value());
  return fmt::format("def {}({}):\n    {}\n    return {}", part, takes, fmt::join(writer.lets(), "\n    "),
                     writer.value());
}

}  // namespace attune::compiler
