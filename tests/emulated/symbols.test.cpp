// tests/emulated/symbols.test.cpp — what a kernel's library exports and imports: programs that load it have other
// symbols
#include <sstream>

#include <dlfcn.h>

#include "codegen/choose/choose.h"
#include "codegen/source/source.h"
#include "compiler/lower.h"
#include "runtime/platform/emulated/command.h"
#include "runtime/platform/emulated/files.h"
#include "tests/emulated/gpu.h"
#include "tests/numerics/corpus.h"

namespace attune::tests {
namespace {

using Words = std::vector<std::string>;

/// Calls as many functions of C's library as a mod can.
const CorpusMod rich{.name = "rich",
                     .score = "erf(s) + exp(s) + log(abs(s)) + exp2(s) + log2(abs(s)) + sin(s) + cos(s) + tan(s) + "
                              "tanh(s) + pow(s, 1.5) + floor(s) + round(s) + sqrt(abs(s)) + f32(kv / 3)",
                     .mask = "kv <= q"};

/// The source of the first kernel for a call that differentiates nothing but q, k and v.
codegen::Source source_of(int arch, codegen::Way way) {
  const compiler::LoweredMod lowered = compiler::lower(make(rich, 1).attention);
  const codegen::Wanted no_gradients(0);
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, true,
                                                     way == codegen::Way::forward ? nullptr : &no_gradients);
  const auto choices = codegen::choose({.arch = arch}, parts.facts, codegen::call_kind(parts, codegen::Length::longer),
                                       nullptr, codegen::kernels(way))
                           .choices;
  return codegen::kernel_source(parts, choices.front().plan);
}

/// The names that nm lists.
Words listed(const std::string& library, const std::string& which) {
  const runtime::emulated::Folder own;
  runtime::emulated::write_below(own.path(), "kernel.so", library);
  const auto nm = runtime::emulated::ran(
      fmt::format("nm -D -P {} {}", which, runtime::emulated::quoted((own.path() / "kernel.so").string())));
  REQUIRE(nm.status == 0);
  std::istringstream lines(nm.said);
  Words out;
  for (std::string line; std::getline(lines, line);) out.push_back(line.substr(0, line.find_first_of(" @")));
  return out;
}

}  // namespace

TEST_CASE("a kernel's library exports one symbol, and imports functions of C's libraries alone", "[emulated]") {
  if (skipped_without_compiler()) return;
  for (const auto& [arch, way] : {std::pair{80, codegen::Way::forward},
                                  {80, codegen::Way::queries},
                                  {90, codegen::Way::forward},
                                  {90, codegen::Way::backward}}) {
    const codegen::Source source = source_of(arch, way);
    INFO(source.name);
    const runtime::cuda::Binary made = runtime::emulated::compile(source);
    const std::string library(made.cubin.begin(), made.cubin.end());
    CHECK(listed(library, "--defined-only") == Words{made.symbol});
    for (const std::string& name : listed(library, "--undefined-only")) {
      INFO(name);
      Dl_info from{};
      void* const found = dlsym(RTLD_NEXT, name.c_str());
      REQUIRE((found && dladdr(found, &from)));
      const std::string file = std::string("/") + from.dli_fname;
      CHECK((file.find("/libm.") != std::string::npos || file.find("/libc.") != std::string::npos));
    }
  }
}

}  // namespace attune::tests
