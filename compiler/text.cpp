// compiler/text.cpp — attune::Text: turns names and expressions in text into the same callables as lambdas
#include <attune/text.h>

#include <array>
#include <vector>

#include "compiler/mod.h"
#include "ir/parse.h"

namespace attune {

// In a text's expressions, slots number the text's own names; tracing an Attention replaces them with the DSL's reads.
struct Text::Names {
  ir::Signature signature;
  std::vector<Tensor> captures;
  std::vector<std::shared_ptr<detail::ParamCell>> params;
  std::map<std::string, ir::Expr, std::less<>> lets;

  using Inputs = std::vector<std::pair<ir::Input, ir::Expr>>;

  ir::Expr parse(std::string_view text, std::string called, std::uint32_t inputs, std::optional<ir::Type> type) const {
    return ir::parse(
        text, {.name = std::move(called), .inputs = inputs, .expected = type, .signature = &signature, .lets = lets});
  }
  void require_free(const std::string& name, const std::string& kind) const;
  ir::Expr replay(const ir::Expr& parsed, const Inputs& inputs) const;
  void add_param(std::string name, bool is_float, double value);
};

namespace {

using ir::bit, ir::Input;

constexpr std::uint32_t for_sink = bit(Input::B) | bit(Input::H);
constexpr std::uint32_t for_mask = for_sink | bit(Input::Q) | bit(Input::KV) | bit(Input::QLen) | bit(Input::KVLen);
constexpr std::uint32_t for_score = for_mask | bit(Input::S);
constexpr std::uint32_t for_prob = for_mask | bit(Input::P);

std::vector<std::pair<Input, ir::Expr>> inputs_of(const At& at) {
  return {{Input::B, at.batch.node()}, {Input::H, at.head.node()},     {Input::Q, at.q.node()},
          {Input::KV, at.kv.node()},   {Input::QLen, at.q_len.node()}, {Input::KVLen, at.kv_len.node()}};
}

Error name_error(std::string code, const std::string& problem, std::string why, std::string fix) {
  return Error(std::move(code), problem, {}, std::move(why), std::move(fix));
}

}  // namespace

void Text::Names::require_free(const std::string& name, const std::string& kind) const {
  if (!ir::is_name(name))
    throw name_error("bad-name", "`" + name + "` cannot name a " + kind,
                     "a name is a letter or _, then letters, digits and _", "choose another name");
  if (ir::is_reserved(name))
    throw name_error("reserved-name", "`" + name + "` cannot name a " + kind,
                     "the language uses it for a variable, a function or a word", "choose another name");
  std::string holder;
  for (const auto& c : signature.captures)
    if (c.name == name) holder = "capture";
  for (const auto& p : signature.params)
    if (p.name == name) holder = "parameter";
  if (lets.contains(name)) holder = "let";
  if (!holder.empty())
    throw name_error("name-taken", "`" + name + "` names a " + kind + " and a " + holder,
                     "a name means the same thing in all expressions", "rename one of them");
}

/// `parsed` as a DSL value, with inputs replaced by the trace's, and slots by the trace's captures and parameters.
ir::Expr Text::Names::replay(const ir::Expr& parsed, const Inputs& inputs) const {
  return ir::rebuild(parsed, [&](const ir::Expr& node, std::span<const ir::Expr> args) -> ir::Expr {
    if (node->op == ir::Op::Input) {
      for (const auto& [which, value] : inputs)
        if (static_cast<Input>(node->bits) == which) return value;
      throw Bug("an expression reads an input that does not exist there");
    }
    if (node->op == ir::Op::Param) return detail::param(params[node->bits], {});
    if (node->op != ir::Op::Read) return nullptr;
    const ir::Expr read = detail::read(captures[node->bits], signature.captures[node->bits].name, args, {});
    return ir::make(read->op, read->type, read->bits, read->arguments(), node->written);
  });
}

void Text::Names::add_param(std::string name, bool is_float, double value) {
  require_free(name, "parameter");
  signature.params.push_back({name, is_float ? ir::Type::F32 : ir::Type::I32});
  params.push_back(std::make_shared<detail::ParamCell>(detail::ParamCell{std::move(name), is_float, value}));
}

Text::Text() : names_(std::make_shared<Names>()) {}

Text& Text::capture(std::string name, const Tensor& tensor) {
  names_->require_free(name, "capture");
  names_->signature.captures.push_back({std::move(name), compiler::type_of(tensor.dtype), tensor.rank});
  names_->captures.push_back(tensor);
  return *this;
}

Text& Text::param(std::string name, float value) {
  names_->add_param(std::move(name), true, value);
  return *this;
}

Text& Text::param(std::string name, int value) {
  names_->add_param(std::move(name), false, value);
  return *this;
}

Text& Text::let(std::string name, std::string_view expression) {
  names_->require_free(name, "let");
  ir::Expr parsed = names_->parse(expression, "let " + name, for_score | for_prob, {});
  names_->lets.emplace(std::move(name), std::move(parsed));
  return *this;
}

// Each callable keeps a snapshot of the names, so that names added later do not change it.

Score Text::score(std::string_view expression, std::string called) const {
  const ir::Expr parsed = names_->parse(expression, std::move(called), for_score, ir::Type::F32);
  return [parsed, names = std::make_shared<const Names>(*names_)](Float s, At at) {
    auto inputs = inputs_of(at);
    inputs.emplace_back(Input::S, s.node());
    return Float(names->replay(parsed, inputs));
  };
}

Mask Text::mask(std::string_view expression, std::string called) const {
  const ir::Expr parsed = names_->parse(expression, std::move(called), for_mask, ir::Type::Bool);
  return [parsed, names = std::make_shared<const Names>(*names_)](At at) {
    return Bool(names->replay(parsed, inputs_of(at)));
  };
}

Prob Text::prob(std::string_view expression, std::string called) const {
  const ir::Expr parsed = names_->parse(expression, std::move(called), for_prob, ir::Type::F32);
  return [parsed, names = std::make_shared<const Names>(*names_)](Float p, At at) {
    auto inputs = inputs_of(at);
    inputs.emplace_back(Input::P, p.node());
    return Float(names->replay(parsed, inputs));
  };
}

Sink Text::sink(std::string_view expression, std::string called) const {
  const ir::Expr parsed = names_->parse(expression, std::move(called), for_sink, ir::Type::F32);
  return [parsed, names = std::make_shared<const Names>(*names_)](SinkAt at) {
    return Float(names->replay(parsed, {{Input::B, at.batch.node()}, {Input::H, at.head.node()}}));
  };
}

}  // namespace attune
