// codegen/source/kernel_source.cpp — a Mod as the source of a kernel of the forward or the backward
#include "codegen/source/source.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fmt/format.h>

#include <attune/error.h>

#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/source/user_source.h"

namespace attune::codegen {
namespace {

using compiler::Mod;
using ir::Expr, ir::Input, ir::Op;

std::atomic<std::size_t> written_so_far{0};

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

/// True if a choice depends on a division or a function of positions, whose last bit may decide the choice.
bool wants_exact(const Mod& mod) {
  const auto inexact = [](const Expr& e) {
    const bool noisy = ir::uses(e, Input::S) || ir::uses(e, Input::P);
    return e->type == ir::Type::F32 && !noisy && (e->op == Op::Div || ir::is_inexact(e->op));
  };
  const auto chooses = [](const Expr& e) {
    return e->arity > 0 && e->args[0]->type == ir::Type::F32 && (e->type != ir::Type::F32 || ir::rounds(e->op));
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
    switch (plan.kernel->args) {
      case ArgsKind::forward: return "ForwardArgs";
      case ArgsKind::decode: return "DecodeArgs";
      case ArgsKind::mla: return "MlaArgs";
      case ArgsKind::backward: return "BackwardArgs";
    }
    throw Bug("a kernel gets arguments of no kind that is known");
  };
  const std::string_view type = plan.kernel->own ? plan.kernel->own->name : usual();
  if (plan.tile.in_parts) return fmt::format("attune::InParts<attune::{}>", type);
  return plan.further() ? fmt::format("attune::Further<attune::{}>", type) : fmt::format("attune::{}", type);
}

/// A source of one kernel of a device file, with a Mod.
Source source_of(const GpuParts& parts, const KernelPlan& plan, const std::string& kernel, const std::string& file,
                 std::string_view path) {
  const Mod& mod = parts.mod();
  const UserText user{.comment = source_comment(mod),
                      .text = user_source(parts, plan, path.empty() ? Lines::no : Lines::yes).text(),
                      .bytes = source_bytes(mod, plan.spec.strides.offsets64, source_sums(parts, plan).size(),
                                            leaves_ds(parts, plan) ? parts.gradient->ds.size() : 0)};
  Source out = source_around(user, parts, plan, kernel, file);
  for (auto& fact : mod.facts()) out.facts.push_back(std::move(fact));
  if (path.empty()) return out;
  out.options.emplace_back(line_option);
  out.text = with_own_lines(out.text, path);
  return out;
}

}  // namespace

std::string source_space(const GpuParts& parts, const KernelPlan& plan) {
  return plan.spec.exact || wants_exact(parts.mod()) ? "exact" : "fast";
}

Source source_around(const UserText& user, const GpuParts& parts, const KernelPlan& plan, const std::string& kernel,
                     const std::string& file) {
  const int arch = plan.spec.arch;
  const Tile& tile = plan.tile;
  const std::string space = source_space(parts, plan);
  Source out{.name = kernel,
             .text = {},
             .options = source_options(arch, space == "exact"),
             .symbol = fmt::format("attune::{0}<attune::{1}::Tile, attune::{1}::User>", kernel, space),
             .facts = {{"arch", fmt::format("sm_{}", arch)},
                       {"type", std::string(name_of(plan.spec.dtype))},
                       {"d", tile.d == tile.dv ? std::to_string(tile.d) : fmt::format("{}/{}", tile.d, tile.dv)},
                       {"tile", fmt::format("{}x{}", tile.m, tile.n)}},
             .headers = plan.kernel->headers};
  out.text = fmt::format("{}{}{}\nnamespace attune::{} {{\n\n", user.comment,
                         plan.kernel->preamble ? plan.kernel->preamble(plan) : "",
                         source_include(file, plan.kernel->headers), space);
  out.text += user.text;
  out.text += fmt::format("static_assert({}<User> && sizeof(User) == {});\n\n",
                          parts.gradient ? "Differentiable" : "Mod", user.bytes);
  out.text += source_tile(plan) + fmt::format("\n}}  // namespace attune::{}\n\n", space);
  out.text += fmt::format("template __global__ void {}(\n    const __grid_constant__ {}, "
                          "const __grid_constant__ attune::{}::User);\n",
                          out.symbol, args_type(plan), space);
  return out;
}

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
