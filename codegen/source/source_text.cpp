// codegen/source/source_text.cpp — the parts that all generated CUDA sources share: the user's arguments as members,
// and functions
#include "codegen/source/source_text.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <limits>

#include <attune/error.h>

#include "codegen/ceil_div.h"
#include "codegen/source/source.h"

namespace attune::codegen {
namespace {

using ir::Expr, ir::Input;

std::string_view element_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f64: return "double";
    case DType::i64: return "long long";
    case DType::i32: return "int";
    case DType::i16: return "short";
    case DType::i8: return "signed char";
    case DType::u8: return "unsigned char";
    case DType::boolean: return "Flag";
    case DType::e4m3: return "e4m3";
  }
  return {};
}

/// Marks where the source's own lines start again; with_own_lines() turns it into a directive.
constexpr std::string_view own_line = "#line of this source\n";

std::string line_directive(std::size_t number, std::string_view file) {
  std::string name(file);
  // ptxas cannot read these characters in a file name that NVRTC passes on, escaped or not.
  std::ranges::replace_if(
      name, [](char c) { return c == '"' || c == '\\' || c == '\n'; }, '_');
  return fmt::format("#line {} \"{}\"\n", number, name);
}

bool is_known(const ir::Written& at) { return at.file && at.line > 0; }

/// The place of the outermost node whose place is known. Nodes that the compiler made have none.
ir::Written written_in(const Expr& e) {
  const std::vector<Expr> nodes = ir::in_order(e);
  const auto found = std::find_if(nodes.rbegin(), nodes.rend(), [](const Expr& n) { return is_known(n->written); });
  return found == nodes.rend() ? ir::Written{} : (*found)->written;
}

std::string lined_function(const std::string& head, const Expr& e, const ir::Signature& signature,
                           const ir::DevicePrinted& text) {
  std::string out = fmt::format("  __device__ {} const {{\n{}", head, source_locals(source_uses(e), signature));
  std::size_t statement = 0;
  const auto add = [&](std::string_view line) {
    if (const ir::Written at = written_in(text.statements[statement++]); is_known(at))
      out += line_directive(at.line, at.file);
    out += fmt::format("    {}\n", line);
  };
  for (std::string_view lets = text.lets; !lets.empty(); lets.remove_prefix(lets.find('\n') + 1))
    add(lets.substr(0, lets.find('\n')));
  add(fmt::format("return {};", text.value));
  return out + std::string(own_line) + "  }\n";
}

/// True if this is the device file FOLDER/name.cuh.
bool is_file(const Header& file, std::string_view name) {
  constexpr std::string_view ending = ".cuh";
  std::string_view path = file.name;
  if (!path.ends_with(ending)) return false;
  path.remove_suffix(ending.size());
  return path.ends_with(name) && path.size() > name.size() && path[path.size() - name.size() - 1] == '/';
}

/// Builds the bytes of the source's struct, aligned as C++ aligns its members.
class Layout {
 public:
  template <class T>
  void put(const T& value) {
    align(alignof(T));
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  /// Device pointers have 8 bytes, whatever the size of a host pointer.
  void put_pointer(const void* pointer) { put(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer))); }
  void align(std::size_t to) {
    widest_ = std::max(widest_, to);
    bytes_.resize(round_up(bytes_.size(), to));
  }
  std::vector<std::byte> take() {
    align(widest_);
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t widest_ = 1;
};

void put_capture(Layout& layout, const Tensor& tensor, int rank, bool offsets64) {
  layout.put_pointer(tensor.data);
  for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d)
    if (offsets64)
      layout.put(tensor.strides[d]);
    else
      // The stride of a dimension with one element is never used, and may not fit into 32 bits.
      layout.put(static_cast<std::int32_t>(tensor.shape[d] > 1 ? tensor.strides[d] : 0));
  for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d)
    // An index is an Int, so a larger last index would never be reached.
    layout.put(static_cast<std::int32_t>(
        std::clamp<std::int64_t>(tensor.shape[d] - 1, 0, std::numeric_limits<std::int32_t>::max())));
  layout.align(alignof(std::uint64_t));
}

void put_param(Layout& layout, ir::Type type, double value) {
  switch (type) {
    case ir::Type::F32: return layout.put(static_cast<float>(value));
    case ir::Type::I32: return layout.put(static_cast<std::int32_t>(value));
    case ir::Type::Bool: return layout.put(value != 0);
  }
}

}  // namespace

std::string source_include(std::string_view name, std::span<const Header> own) {
  for (const std::span<const Header> files : {own, headers()})
    if (const auto file = std::ranges::find_if(files, [&](const Header& one) { return is_file(one, name); });
        file != files.end())
      return fmt::format("#include \"{}\"\n", file->name);
  throw Bug(fmt::format("there is no device file {}.cuh", name));
}

std::string_view device_type(ir::Type type) {
  switch (type) {
    case ir::Type::Bool: return "bool";
    case ir::Type::I32: return "Int";
    case ir::Type::F32: return "float";
  }
  return {};
}

std::string source_name(std::string_view users) { return fmt::format("u_{}", users); }

ir::Signature source_signature(const compiler::Mod& mod) {
  ir::Signature signature = mod.signature();
  for (auto& c : signature.captures) c.name = source_name(c.name);
  for (auto& p : signature.params) p.name = source_name(p.name);
  return signature;
}

std::string source_comment(const compiler::Mod& mod) {
  std::string out, text = mod.text();
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += "// " + text.substr(0, end) + "\n";
    text.erase(0, end + 1);
  }
  return out;
}

std::string source_members(const compiler::Mod& mod, const ir::Signature& signature, bool offsets64, bool inside) {
  std::string out;
  for (std::size_t i = 0; i < mod.captures.size(); ++i)
    out += fmt::format("  Capture<{}, {}{}{}> {};\n", element_type(mod.captures[i].dtype), mod.captures[i].rank,
                       offsets64 ? ", long long"
                       : inside  ? ", int"
                                 : "",
                       inside ? ", reads" : "", signature.captures[i].name);
  for (const auto& p : signature.params)
    out += fmt::format("  {} {};\n", p.type == ir::Type::I32 ? "Word" : device_type(p.type), p.name);
  return out + fmt::format("  float {};\n", source_scale);
}

std::vector<std::byte> user_bytes(const compiler::Mod& mod, std::span<const Tensor> captures,
                                  std::span<const double> params, float scale, bool offsets64,
                                  std::span<void* const> sums, const DsArgs* ds) {
  Layout layout;
  for (std::size_t i = 0; i < mod.captures.size(); ++i)
    put_capture(layout, captures[i], mod.captures[i].rank, offsets64);
  for (std::size_t i = 0; i < mod.params.size(); ++i) put_param(layout, mod.params[i].type, params[i]);
  layout.put(scale);
  for (void* const at : sums) layout.put_pointer(at);
  if (ds) {
    layout.put(ds->stored);
    for (const SumOfDs& one : ds->sums) layout.put(one);
  }
  return layout.take();
}

std::size_t source_bytes(const compiler::Mod& mod, bool offsets64, std::size_t sums, std::size_t of_ds) {
  const std::vector<Tensor> captures(mod.captures.size());
  const std::vector<double> params(mod.params.size());
  const std::vector<SumOfDs> sums_of_ds(of_ds);
  const DsArgs ds{{}, sums_of_ds};
  return user_bytes(mod, captures, params, 0, offsets64, std::vector<void*>(sums), of_ds ? &ds : nullptr).size();
}

Expr value_of(const Expr& e) {
  return ir::rebuild(
      e, [](const Expr& node, std::span<const Expr> args) { return node->op == ir::Op::Custom ? args[0] : nullptr; });
}

std::uint32_t source_uses(const Expr& e) {
  std::uint32_t uses = 0;
  for (const Expr& n : ir::in_order(e))
    if (n->op == ir::Op::Input || ir::draws(n->op)) uses |= n->uses;
  return uses;
}

std::string source_locals(std::uint32_t uses, const ir::Signature& signature) {
  std::string out;
  std::uint32_t nth = 0;
  for (const Input which : {Input::B, Input::H, Input::QLen, Input::KVLen}) {
    const std::uint32_t slot = signature.whole.value_or(0) + nth++;
    if (!(uses & ir::bit(which))) continue;
    const std::string_view name = ir::input_names[static_cast<std::size_t>(which)];
    const std::string more = signature.whole ? fmt::format("{} + ", signature.params[slot].name) : "";
    out += fmt::format("    const Int {0} = {1}at.{0};\n", name, more);
  }
  return out;
}

std::string source_traits(const std::string& head, const std::vector<std::string>& list) {
  std::string out, line = head;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string text = list[i] + (i + 1 < list.size() ? "," : "};\n");
    if (i > 0 && line.size() + 1 + text.size() > source_width) {
      out += line + "\n";
      line = std::string(head.size(), ' ') + text;
    } else {
      line += (i > 0 ? " " : "") + text;
    }
  }
  return out + line + (list.empty() ? "};\n" : "");
}

std::string source_function(const std::string& head, const Expr& e, const ir::Signature& signature,
                            const ir::FieldNames& fields, Lines lines) {
  const ir::DevicePrinted text = ir::print_for_device(e, signature, fields);
  if (lines == Lines::yes && is_known(written_in(e))) return lined_function(head, e, signature, text);
  const std::string locals = source_locals(source_uses(e), signature);
  const std::string line = fmt::format("  __device__ {} const {{ return {}; }}\n", head, text.value);
  if (locals.empty() && text.lets.empty() && line.size() <= source_width + 1) return line;
  std::string lets = text.lets;
  for (std::size_t at = 0; at < lets.size(); at = lets.find('\n', at) + 1) lets.insert(at, "    ");
  return fmt::format("  __device__ {} const {{\n{}{}    return {};\n  }}\n", head, locals, lets, text.value);
}

std::string source_value(const Expr& e, const ir::Signature& signature, const ir::FieldNames& fields) {
  ir::DevicePrinted text = ir::print_for_device(e, signature, fields);
  if (text.lets.empty()) return text.value;
  std::replace(text.lets.begin(), text.lets.end(), '\n', ' ');
  return fmt::format("[&] {{ {}return {}; }}()", text.lets, text.value);
}

std::vector<std::string> field_names(std::string_view level, std::span<const Expr> list,
                                     const ir::Signature& signature) {
  std::vector<std::string> names;
  for (const Expr& e : list) {
    std::string name = e->op == ir::Op::Read ? signature.captures[e->bits].name : "";
    if (name.empty() || std::find(names.begin(), names.end(), name) != names.end())
      name = fmt::format("{}{}", level, names.size());
    names.push_back(std::move(name));
  }
  return names;
}

std::string fields_struct(std::string_view name, std::span<const Expr> list, const std::vector<std::string>& names,
                          std::string_view more) {
  if (list.empty()) return fmt::format("  struct {} {{}};\n", name);
  std::string out = fmt::format("  struct {} {{\n", name);
  for (std::size_t i = 0; i < list.size(); ++i)
    out += fmt::format("    {} {};\n", device_type(list[i]->type), names[i]);
  return out + fmt::format("{}  }};\n", more);
}

std::string with_own_lines(std::string_view source, std::string_view path) {
  std::string out = line_directive(2, path);
  for (std::size_t number = 2; !source.empty(); ++number) {
    const std::size_t end = std::min(source.find('\n'), source.size() - 1) + 1;
    const std::string_view line = source.substr(0, end);
    out += line == own_line ? line_directive(number + 1, path) : std::string(line);
    source.remove_prefix(end);
  }
  return out;
}

std::string fields_function(const std::string& head, std::span<const Expr> list, const ir::Signature& signature,
                            const ir::FieldNames& fields, Lines lines) {
  std::uint32_t uses = 0;
  std::string values;
  for (const Expr& e : list) {
    uses |= source_uses(e);
    values += (values.empty() ? "" : ", ") + source_value(e, signature, fields);
  }
  const std::string locals = source_locals(uses, signature);
  if (lines == Lines::yes)
    for (const Expr& e : list)
      if (const ir::Written at = written_in(e); is_known(at))
        return fmt::format("  __device__ {} const {{\n{}{}    return {{{}}};\n{}  }}\n", head, locals,
                           line_directive(at.line, at.file), values, own_line);
  const std::string line = fmt::format("  __device__ {} const {{ return {{{}}}; }}\n", head, values);
  if (locals.empty() && line.size() <= source_width + 1) return line;
  return fmt::format("  __device__ {} const {{\n{}    return {{{}}};\n  }}\n", head, locals, values);
}

std::vector<std::string> source_options(int arch, bool exact) {
  std::vector<std::string> options{fmt::format("--gpu-architecture=sm_{}{}", arch, arch == 90 ? "a" : ""),
                                   "--std=c++20", "--device-as-default-execution-space", "--ptxas-options=-v",
                                   "--ftz=true"};
  if (!exact) options.insert(options.end(), {"--prec-div=false", "--prec-sqrt=false"});
  return options;
}

}  // namespace attune::codegen
