// playground/say.cpp — quotes commands for a shell; writes programs with functions where those read well, else text
#include "playground/say.h"

#include <fmt/format.h>

#include "compiler/spell.h"
#include "ir/print.h"

namespace attune::playground {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string shape_of(const Tensor& t) {
  std::string out;
  for (int i = 0; i < t.rank; ++i) out += (i ? ", " : "") + std::to_string(t.shape[static_cast<std::size_t>(i)]);
  return out;
}

std::string command(const runtime::Written& w, const std::vector<std::string>& look) {
  std::string out = "attune plot";
  const auto add = [&](const std::string& option, const std::string& value) {
    out += " \\\n  --" + option + " " + quoted(value);
  };
  for (const std::string& one : w.captures) add("capture", one);
  for (const std::string& one : w.params) add("param", one);
  for (const std::string& one : w.lets) add("let", one);
  for (const auto& [word, member] : runtime::written_parts)
    if (w.*member) add(word, *(w.*member));
  for (const std::string& one : look) out += " \\\n  " + one;
  return out;
}

/// A type's names in C++ and in Python.
struct TypeNames {
  std::string_view cpp, python;
};
TypeNames names_of(DType type) {
  switch (type) {
    case DType::f32: return {"float", "np.float32"};
    case DType::f16: return {"f16", "np.float16"};
    case DType::bf16: return {"bf16", "ml_dtypes.bfloat16"};
    case DType::f64: return {"double", "np.float64"};
    case DType::i64: return {"std::int64_t", "np.int64"};
    case DType::i32: return {"std::int32_t", "np.int32"};
    case DType::i16: return {"std::int16_t", "np.int16"};
    case DType::i8: return {"std::int8_t", "np.int8"};
    case DType::u8: return {"std::uint8_t", "np.uint8"};
    case DType::boolean: return {"bool", "np.bool_"};
    case DType::e4m3: return {"e4m3", "ml_dtypes.float8_e4m3fn"};
  }
  throw Bug("a captured tensor has an unknown type");
}

struct Part {
  const char* name;
  const char* type;
  const std::optional<std::string>& written;
  const ir::Expr& expression;
};

/// The expressions that differ from plain attention.
std::vector<Part> parts(const runtime::Written& w, const compiler::Mod& mod) {
  std::vector<Part> out;
  for (const Part& part : {Part{"score", "Score", w.score, mod.score}, Part{"mask", "Mask", w.mask, mod.mask},
                           Part{"prob", "Prob", w.prob, mod.prob}, Part{"sink", "Sink", w.sink, mod.sink}})
    if (part.written) out.push_back(part);
  return out;
}

std::string cpp(const runtime::Written& w, const compiler::BoundMod& of) {
  const compiler::Mod& mod = of.mod;
  const ir::Signature names = mod.signature();
  std::string out = "#include <attune/attune.h>\nusing namespace attune;\n\n";
  for (std::size_t i = 0; i < mod.captures.size(); ++i)
    out += fmt::format("const auto {0} = Device::cpu().array<{1}>({{{2}}}, \"{0}\");\n", mod.captures[i].name,
                       names_of(mod.captures[i].dtype).cpp, shape_of(of.slots.captures[i]));
  for (std::size_t i = 0; i < mod.params.size(); ++i)
    out += fmt::format("Param<{0}> {1}(\"{1}\", {2});\n", mod.params[i].type == ir::Type::F32 ? "float" : "int",
                       mod.params[i].name, ir::print_literal(mod.params[i].type, of.slots.params[i]->value));
  std::vector<std::string> functions;
  for (const Part& part : parts(w, mod)) {
    functions.push_back(compiler::lambda(part.expression, part.name, names, compiler::Language::cpp));
    if (!functions.back().empty()) out += fmt::format("const {} {} = {};\n", part.type, part.name, functions.back());
  }
  std::string members, text;
  std::size_t i = 0;
  for (const Part& part : parts(w, mod)) {
    const bool as_text = functions[i++].empty();
    members += (members.empty() ? "." : ", .") + std::string(part.name) + " = " +
               (as_text ? fmt::format("text.{}(R\"({})\")", part.name, ir::print(part.expression, names))
                        : std::string(part.name));
    if (as_text && text.empty()) {
      text = "Text text;\n";
      for (const compiler::CaptureSlot& c : mod.captures) text += fmt::format("text.capture(\"{0}\", {0});\n", c.name);
      for (std::size_t p = 0; p < mod.params.size(); ++p)
        text += fmt::format("text.param(\"{}\", {});\n", mod.params[p].name,
                            ir::print_literal(mod.params[p].type, of.slots.params[p]->value));
    }
  }
  return out + text + fmt::format("const Attention attention{{{}}};\n\nattention(q, k, v, o);\n", members);
}

std::string python(const runtime::Written& w, const compiler::BoundMod& of) {
  const compiler::Mod& mod = of.mod;
  const ir::Signature names = mod.signature();
  std::string out = "import attune\n", before, functions, arguments, keywords;
  if (!mod.captures.empty()) out += "import numpy as np\n";
  for (const compiler::CaptureSlot& c : mod.captures)
    if ((c.dtype == DType::bf16 || c.dtype == DType::e4m3) && out.find("ml_dtypes") == std::string::npos)
      out += "import ml_dtypes\n";
  for (std::size_t i = 0; i < mod.captures.size(); ++i) {
    const Tensor& t = of.slots.captures[i];
    before += fmt::format("{} = np.zeros({}, {})\n", mod.captures[i].name,
                          t.rank == 1 ? shape_of(t) : "(" + shape_of(t) + ")", names_of(mod.captures[i].dtype).python);
    keywords += fmt::format(", {0}={0}", mod.captures[i].name);
  }
  for (std::size_t i = 0; i < mod.params.size(); ++i) {
    std::string value = ir::print_literal(mod.params[i].type, of.slots.params[i]->value);
    if (value.ends_with('f')) value.pop_back();
    before += fmt::format("{} = attune.Param({})\n", mod.params[i].name, value);
    keywords += fmt::format(", {0}={0}", mod.params[i].name);
  }
  bool any_text = false;
  for (const Part& part : parts(w, mod)) {
    const std::string function = compiler::lambda(part.expression, part.name, names, compiler::Language::python);
    std::string argument = part.name;
    if (function.starts_with("def "))
      functions += function + "\n\n";
    else if (!function.empty())
      argument = function;
    else
      any_text = true, argument = "\"" + ir::print(part.expression, names) + "\"";
    arguments += fmt::format(",\n                     {}={}", part.name, argument);
  }
  if (!before.empty()) out += "\n" + before;
  if (!functions.empty()) out += "\n" + functions;
  return out + fmt::format("\no = attune.attention(q, k, v{}{})\n", arguments, any_text ? keywords : "");
}

}  // namespace

Said say(const runtime::Written& written, const compiler::BoundMod& mod, const std::vector<std::string>& look) {
  return {command(written, look), cpp(written, mod), python(written, mod)};
}

std::vector<std::string> look_of(const runtime::View& view, const std::map<std::string, Fill, std::less<>>& fills) {
  std::vector<std::string> out;
  for (const auto& [name, how] : fills)
    if (!how.how.empty()) out.push_back(fmt::format("--fill '{}={}'", name, text_of(how)));
  const runtime::Extent& e = view.extent;
  std::string sizes = fmt::format("--q-len {} --kv-len {} --tile {}x{}", e.q_len, e.kv_len, e.tile_q, e.tile_kv);
  for (const auto& [option, value] : {std::pair{"q-offset", e.q_offset}, {"b", view.b}, {"h", view.h}})
    if (value != 0) sizes += fmt::format(" --{} {}", option, value);
  for (const auto& [option, value] : {std::pair{"batch", e.batch}, {"heads", e.heads}})
    if (value != 1) sizes += fmt::format(" --{} {}", option, value);
  out.push_back(sizes);
  return out;
}

}  // namespace attune::playground
