// tests/codegen/spliced_mods.test.cpp — random mods as whole kernels and spliced into skeletons: registers and spills
#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>

#include "codegen/choose.h"
#include "codegen/kernel.h"
#include "codegen/skeleton.h"
#include "compiler/lower.h"
#include "runtime/engines/cuda/nvrtc.h"
#include "runtime/engines/cuda/spliced.h"
#include "tests/catch.h"
#include "tests/fuzz/random_call.h"
#include "tests/nvrtc.h"

namespace attune::tests {
namespace {

namespace cuda = runtime::cuda;

struct Found {
  int mods = 0, kernels = 0, spliced = 0, tight = 0, better = 0, refused = 0, none = 0;
  std::string wrong, others;
};

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

/// The first kernel of a call of this mod, both ways.
void compare(std::uint64_t seed, const compiler::LoweredMod& lowered, bool backward, Found& found) {
  const codegen::Wanted wanted(lowered.mod.captures.size());
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, true, backward ? &wanted : nullptr);
  const codegen::KernelSpec spec{.d = seed % 4 == 0 ? 64 : 128, .dv = seed % 4 == 0 ? 64 : 128};
  const auto kernels = codegen::kernels(backward ? codegen::Way::backward : codegen::Way::forward);
  if (std::ranges::all_of(kernels, [&](const auto* one) { return !one->why_not(spec, parts.facts).empty(); })) return;
  const codegen::KernelChoices choices = codegen::choose(
      spec, parts.facts, codegen::call_kind(parts, codegen::Length::longer), nullptr, kernels);
  const codegen::KernelPlan& plan = choices.choices.front().plan;
  if (!codegen::why_not_spliced(parts, plan).empty()) {
    ++found.none;
    return;
  }
  const codegen::Source source = codegen::kernel_source(parts, plan);
  const cuda::Binary whole = cuda::compile(source), made = cuda::compile_spliced(source, parts, plan);
  ++found.kernels;
  found.spliced += made.made == "spliced";
  found.tight += made.made.find("spill") != std::string::npos;
  found.better += made.made == "spliced" && made.spilled < whole.spilled;
  const bool reasoned = made.made == "spliced" || made.made.find("spill") != std::string::npos ||
                        made.made.find("PTX") != std::string::npos || made.made.find("wait") != std::string::npos;
  if (reasoned && made.made != "spliced") found.others += fmt::format("  seed {}: {}\n", seed, made.made);
  found.refused += made.made.starts_with("NVRTC refuses");
  if (made.spilled > whole.spilled || made.registers > whole.registers ||
      made.warnings.size() > whole.warnings.size() || made.symbol != whole.symbol || !reasoned)
    found.wrong += fmt::format("seed {}, {}: {}; {} registers and {} bytes spilled, as a whole {} and {}\n", seed,
                               plan.kernel->name, made.made, made.registers, made.spilled, whole.registers,
                               whole.spilled);
}

}  // namespace

// ATTUNE_FUZZ=N and ATTUNE_FUZZ_FROM=N: how many mods, and the first one's seed.
TEST_CASE("random mods spliced have no register and no spill that they have not as wholes", "[splice]") {
  if (skips_compiling()) return;
  Found found;
  const std::uint64_t from = number("ATTUNE_FUZZ_FROM", 0), count = number("ATTUNE_FUZZ", 4);
  for (std::uint64_t seed = from; seed < from + count; ++seed) {
    try {
      const RandomCall call(seed);
      const compiler::LoweredMod lowered = compiler::lower(compiler::BoundMod(call.bound()));
      ++found.mods;
      for (const bool backward : {false, true}) compare(seed, lowered, backward, found);
    } catch (const Error&) {
      continue;  // the compiler refuses the mod
    }
    if (std::getenv("ATTUNE_TEST_SAY"))
      fmt::print("{} mods, {} kernels: {} spliced, {} not because of spills, {} spill less; {} have no skeleton\n{}",
                 found.mods, found.kernels, found.spliced, found.tight, found.better, found.none, found.others);
    found.others.clear();
  }
  CHECK(found.wrong == "");
  CHECK(found.refused == 0);
  CHECK(found.spliced > 0);
}

}  // namespace attune::tests
