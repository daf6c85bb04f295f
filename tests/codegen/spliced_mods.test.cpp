// tests/codegen/spliced_mods.test.cpp — random mods as whole kernels and spliced into skeletons: registers, spills and
// machine code
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include "codegen/choose/choose.h"
#include "codegen/choose/kernel.h"
#include "codegen/source/skeleton.h"
#include "compiler/lower.h"
#include "runtime/engines/cuda/kernels/spliced.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/catch.h"
#include "tests/codegen/machine_code.h"
#include "tests/fuzz/random_call.h"
#include "tests/nvrtc.h"
#include "tests/turn.h"

namespace attune::tests {
namespace {

namespace cuda = runtime::cuda;

struct Found {
  int mods = 0, kernels = 0, spliced = 0, fewer_spills = 0, none = 0;
  /// Of spliced kernels: those with the same number of additions, multiplications, both in one and special functions;
  /// and those with as many roundings of products and sums, if one instruction with two roundings counts as both.
  int same_mix = 0, same_products_and_sums = 0;
  double instructions = 0, most_instructions = 0;  ///< spliced by whole: sum, largest
  std::map<std::string, int> reasons{};            ///< why kernels were compiled as a whole
  std::string wrong{};
};

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

std::string told(const MachineCode& code) {
  return fmt::format("{} instructions, {} FADD, {} FMUL, {} FFMA, {} MUFU, {} WGMMA, {} loads", code.all(), code.fadd(),
                     code.fmul(), code.ffma(), code.mufu(), code.wgmma(), code.loads());
}

/// Adds what two kernels have in common; returns what is wrong with the spliced one.
std::string compare(const cuda::Binary& made, const cuda::Binary& whole, Found& found) {
  const MachineCode one(made.cubin, made.symbol), other(whole.cubin, whole.symbol);
  const double share = one.all() / static_cast<double>(std::max(other.all(), 1));
  found.instructions += share;
  found.most_instructions = std::max(found.most_instructions, share);
  const bool products = one.fmul() + one.ffma() == other.fmul() + other.ffma(),
             sums = one.fadd() + one.ffma() == other.fadd() + other.ffma(), special = one.mufu() == other.mufu();
  found.same_products_and_sums += products && sums && special;
  found.same_mix += products && sums && special && one.ffma() == other.ffma();
  if (one.all() == 0 || one.wgmma() != other.wgmma() || share > 1.1)
    return fmt::format("{}; as a whole {}", told(one), told(other));
  return {};
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
  const cuda::Binary made = cuda::only_spliced(source, parts, plan);
  ++found.kernels;
  const auto refused = [&](const std::string& why) {
    ++found.reasons[why];
    if (why.starts_with("NVRTC refuses"))
      found.wrong += fmt::format("WRONG seed {}, {}: {}\n{}\n", seed, plan.kernel->name, why, lowered.mod.text());
  };
  if (made.cubin.empty()) return refused(made.made);
  const cuda::Binary whole = cuda::compile(source);
  if (!cuda::is_taken(made, whole)) return refused("spliced, it would spill");
  ++found.spliced;
  found.fewer_spills += made.spilled < whole.spilled;
  std::string wrong = compare(made, whole, found);
  if (made.spilled > whole.spilled || made.registers > whole.registers ||
      made.warnings.size() > whole.warnings.size() || made.symbol != whole.symbol)
    wrong += fmt::format("; {}: {} registers and {} bytes spilled, as a whole {} and {}", made.made, made.registers,
                         made.spilled, whole.registers, whole.spilled);
  if (wrong.empty()) return;
  found.wrong += fmt::format("WRONG seed {}, {}: {}\n{}\n", seed, plan.kernel->name, wrong, lowered.mod.text());
}

void tell(const Found& found, std::uint64_t seed, double seconds) {
  std::string reasons;
  for (const auto& [reason, count] : found.reasons)
    reasons += fmt::format("{}\"{}\": {}", reasons.empty() ? "" : ", ", reason, count);
  fmt::print("{}{{\"seed\": {}, \"seconds\": {:.1f}, \"mods\": {}, \"kernels\": {}, \"spliced\": {}, \"fewer_spills\": "
             "{}, \"no_skeleton\": {}, \"same_mix\": {}, \"same_products_and_sums\": {}, \"instructions\": {:.4f}, "
             "\"most_instructions\": {:.3f}, \"whole\": {{{}}}}}\n",
             found.wrong, seed, seconds, found.mods, found.kernels, found.spliced, found.fewer_spills, found.none,
             found.same_mix, found.same_products_and_sums, found.instructions, found.most_instructions, reasons);
}

}  // namespace

// Environment variables: ATTUNE_FUZZ=N mods, ATTUNE_FUZZ_FROM=N the first one's seed, ATTUNE_TEST_SAY=1 a line of JSON
// for each.
TEST_CASE("random mods spliced have no register and no spill that they have not as wholes", "[splice]") {
  if (skips_compiling()) return;
  const std::uint64_t count = number("ATTUNE_FUZZ", turn() ? 2 : 4),
                      from = number("ATTUNE_FUZZ_FROM", *seeds_in_turn(count).begin());
  const bool says = std::getenv("ATTUNE_TEST_SAY") != nullptr;
  int spliced = 0;
  // Not every mod has a kernel that can be spliced: a test takes further ones until one has.
  for (std::uint64_t seed = from; seed < from + count || (!says && spliced == 0 && seed < from + 20); ++seed) {
    Found found;
    const auto began = std::chrono::steady_clock::now();
    try {
      const RandomCall call(seed);
      const compiler::LoweredMod lowered = compiler::lower(compiler::BoundMod(call.bound()));
      for (const bool backward : {false, true}) compare(seed, lowered, backward, found);
      ++found.mods;
    } catch (const Error&) {
      // The compiler refuses the mod.
    }
    if (says) tell(found, seed, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    CHECK(found.wrong == "");
    spliced += found.spliced;
  }
  if (!says) CHECK(spliced > 0);
}

}  // namespace attune::tests
