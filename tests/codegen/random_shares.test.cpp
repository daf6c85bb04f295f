// tests/codegen/random_shares.test.cpp — how many random mods run on Hopper's kernels, and why others do not
#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include "codegen/choose/call_choices.h"
#include "codegen/choose/kernel.h"
#include "tests/catch.h"
#include "tests/fuzz/random_call.h"

namespace attune::tests {
namespace {

using codegen::Way;

struct Shares {
  int mods = 0, forward = 0, backward = 0;
  int with_prob = 0, backward_with_prob = 0;
  std::map<std::string, int> reasons{};  ///< why the others do not; several reasons of a mod count once, as the first

  static double of(int part, int all) { return all ? static_cast<double>(part) / all : 1; }
  std::string json() const {
    std::string why;
    for (const auto& [reason, count] : reasons)
      why += fmt::format("{}\"{}\": {}", why.empty() ? "" : ", ", reason, count);
    return fmt::format(
        "{{\"mods\": {}, \"forward\": {:.3f}, \"backward\": {:.3f}, \"with_prob\": {}, \"backward_with_prob\": {:.3f}, "
        "\"reasons\": {{{}}}}}",
        mods, of(forward, mods), of(backward, mods), with_prob, of(backward_with_prob, with_prob), why);
  }
};

/// Why the first kernel of the way, which is Hopper's for 16 bits, does not take the call; empty: it does.
std::string why_not(const compiler::LoweredMod& lowered, const codegen::CallSpec& call, Way way, const char* kernel) {
  const codegen::CallChoices choices = codegen::call_choices(lowered, call);
  if (choices.ways[0].way == way && choices.ways[0].choices.choices[0].plan.kernel->name == kernel) return {};
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, true, call.backward ? &*call.backward : nullptr);
  for (const codegen::KernelDescriptor* one : codegen::kernels(way))
    if (one->name == kernel)
      if (std::string why = one->why_not(choices.ways[0].call.spec, parts.facts); !why.empty())
        return fmt::format("not {}: {}", kernel, why);
  return fmt::format("{} is not the first choice", kernel);
}

/// Of mods of seeds from `from` on, in bf16 with heads 128 wide, with the gradients of all captured tensors.
Shares shares(std::uint64_t from, std::uint64_t count) {
  Shares out;
  for (std::uint64_t seed = from; seed < from + count; ++seed) try {
      const RandomCall call(seed);
      const compiler::LoweredMod lowered = compiler::lower(compiler::BoundMod(call.bound()));
      const codegen::CallSpec forward{};
      codegen::CallSpec backward{};
      backward.backward = codegen::Wanted(lowered.mod.captures.size(), true);
      const std::string why_forward = why_not(lowered, forward, Way::forward, "forward_sm90"),
                        why_backward = why_not(lowered, backward, Way::backward, "backward_sm90");
      const bool has_prob = lowered.mod.prob->op != ir::Op::Input;
      ++out.mods;
      out.forward += why_forward.empty();
      out.backward += why_backward.empty();
      out.with_prob += has_prob;
      out.backward_with_prob += has_prob && why_backward.empty();
      for (const std::string& why : {why_forward, why_backward})
        if (!why.empty()) ++out.reasons[why];
    } catch (const Error&) {
      // The compiler refuses the mod.
    }
  return out;
}

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value ? std::strtoull(value, nullptr, 10) : otherwise;
}

}  // namespace

// Environment variables: ATTUNE_FUZZ=N mods, ATTUNE_FUZZ_FROM=N the first one's seed, ATTUNE_TEST_SAY=1 a line of JSON
// with the shares and the reasons.
TEST_CASE("Hopper's kernels take most random mods, with the gradients of all captured tensors", "[choose]") {
  const Shares found = shares(number("ATTUNE_FUZZ_FROM", 0), number("ATTUNE_FUZZ", 200));
  if (std::getenv("ATTUNE_TEST_SAY")) fmt::print("{}\n", found.json());
  INFO(found.json());
  CHECK(found.mods > 0);
  CHECK(Shares::of(found.forward, found.mods) >= 0.99);
  CHECK(Shares::of(found.backward, found.mods) >= 0.98);
}

}  // namespace attune::tests
