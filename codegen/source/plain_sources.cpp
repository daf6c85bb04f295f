// codegen/source/plain_sources.cpp — the sources that hold no expression of a user
#include <fmt/format.h>

#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"
#include "codegen/source/source.h"
#include "codegen/source/source_text.h"

namespace attune::codegen {

Source rows_source(const RowsSpec& spec) {
  const std::string text = fmt::format(
      "{}\nnamespace attune {{\n\nstruct Tile {{\n  using Element = {};\n  using Out = {};\n"
      "  static constexpr int width_v = {};\n  static constexpr Layout layout = Layout::{};\n"
      "  static constexpr bool of_o = {};\n}};\n\n}}  // namespace attune\n\n"
      "template __global__ void attune::rows<attune::Tile>(const __grid_constant__ attune::BackwardArgs);\n",
      source_include("rows"), gpu_element(spec.dtype).source_name, gpu_element(spec.out).source_name, spec.dv,
      spec.packed ? "packed" : "dense", spec.of_o);
  return {.name = "rows",
          .text = text,
          .options = source_options(spec.arch, true),
          .symbol = "attune::rows<attune::Tile>",
          .facts = {{"arch", fmt::format("sm_{}", spec.arch)}, {"type", std::string(name_of(spec.dtype))}}};
}

RowsSpec rows_spec(const KernelSpec& spec, bool of_o) {
  return {.arch = spec.arch, .dtype = spec.dtype, .out = spec.out, .dv = spec.dv, .packed = spec.packed, .of_o = of_o};
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
                  spec.per_entry ? fmt::format(", per_entry = 1, paged = {}", int{spec.paged}) : ""));
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
