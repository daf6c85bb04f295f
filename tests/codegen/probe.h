// tests/codegen/probe.h — a Mod as the page of the kernel in probe.cuh
#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "codegen/source.h"

namespace attune::tests {

inline constexpr int probe_tile = 16;

inline codegen::Source probe_source(const compiler::Mod& mod, const compiler::Cover& cover, int arch, bool exact) {
  const codegen::ForwardPlan plan{.kernel = "probe", .m = probe_tile, .exact = exact};
  codegen::Source source = codegen::forward_source(mod, cover, plan, arch);
  // No header of the library: its text stands where it is included.
  std::ifstream file(ATTUNE_PROBE);
  const std::string kernel{std::istreambuf_iterator<char>(file), {}}, include = "#include \"probe.cuh\"\n";
  source.text.replace(source.text.find(include), include.size(), kernel.substr(kernel.find("#include")));
  return source;
}

}  // namespace attune::tests
