// tests/codegen/descriptor.test.cpp — a kernel added by the steps of docs/adding-a-kernel.md is chosen and compiles
#include <fmt/format.h>

#include "codegen/choose/choose.h"
#include "codegen/source/source.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "tests/catch.h"
#include "tests/codegen/kernels/forward_plain.h"
#include "tests/numerics/corpus.h"
#include "tests/nvrtc.h"

namespace attune::tests {
namespace {

using codegen::KernelChoices, codegen::KernelSpec, codegen::Kernels, codegen::Preference, codegen::Variant;

constexpr KernelSpec f32{.arch = 80, .dtype = DType::f32, .out = DType::f32, .d = 24, .dv = 40, .exact = true};

}  // namespace

TEST_CASE("a kernel that a list adds is chosen, and the others without it as before", "[descriptor]") {
  const Kernels all = kernels_with_plain();
  const KernelChoices with = codegen::choose(f32, {}, {}, nullptr, all), usual = codegen::choose(f32, {});
  REQUIRE(with.choices.size() == usual.choices.size() + 1);
  CHECK(with.choices[0].plan.kernel == &forward_plain());
  CHECK(codegen::variant_of(with.choices[0].plan).text() == "forward_plain:threads=64");
  for (std::size_t i = 0; i < usual.choices.size(); ++i)
    CHECK(codegen::variant_of(with.choices[i + 1].plan) == codegen::variant_of(usual.choices[i].plan));

  const KernelChoices left_out = codegen::choose({}, {}, {}, nullptr, all);
  REQUIRE(left_out.story.size() == 1);
  CHECK(left_out.story[0] == "not forward_plain: it takes f32, and q holds bf16");
  CHECK(left_out.choices[0].plan.kernel == codegen::choose({}, {}).choices[0].plan.kernel);
}

TEST_CASE("a kernel that a list adds has variants, within the values of its members", "[descriptor]") {
  const Kernels all = kernels_with_plain();
  const auto refusal = [&](const char* text) {
    const Preference one{codegen::variant(text), false, ""};
    return codegen::choose(f32, {}, {}, &one, all).refused;
  };
  CHECK(refusal("forward_plain:threads=96").empty());
  CHECK(refusal("forward_plain:threads=48").ends_with("threads is a multiple of 32, from 32 to 128"));
  CHECK(refusal("forward_plain:m=1").ends_with("forward_plain has no `m`"));
  CHECK(refusal("forward_plane").find("the kernels are forward_plain and ") != std::string::npos);
  const Variant usual = codegen::variant("forward_plain:threads=64");
  CHECK(codegen::other_ways(f32, {}, usual, all).size() == 3);
  CHECK(codegen::other_tiles(f32, {}, usual, all).empty());
  CHECK(codegen::other_ways(f32, {}, usual).empty());
}

TEST_CASE("a kernel that a list adds compiles and is considered, for every architecture", "[descriptor][cuda]") {
  if (skips_compiling()) return;
  for (const char* name : {"causal", "alibi", "documents"})
    for (const int arch : {80, 90}) {
      const auto mod = std::ranges::find(corpus(), name, &CorpusMod::name);
      REQUIRE(mod != corpus().end());
      const Made made = make(*mod, 1);
      const compiler::LoweredMod lowered = compiler::lower(made.attention);
      const codegen::GpuParts parts = codegen::gpu_parts(lowered, true);
      KernelSpec spec = f32;
      spec.arch = arch;
      const runtime::cuda::Considered all = runtime::cuda::consider(
          parts, {.spec = spec, .length = codegen::Length::to_1k}, kernels_with_plain());
      const runtime::cuda::Candidate& taken = all.candidates[all.chosen];
      INFO(name << " sm_" << arch << " " << taken.flaw);
      CHECK(taken.choice.plan.kernel == &forward_plain());
      CHECK(taken.binary->symbol.find("forward_plain") != std::string::npos);
      CHECK(taken.binary->spilled == 0);
      const auto beside = codegen::companions_of(parts, taken.choice.plan);
      REQUIRE(beside.size() == 1);
      const runtime::cuda::Binary tops = runtime::cuda::compile(beside[0]->source_of(parts, taken.choice.plan));
      CHECK(tops.symbol.find("plain_tops") != std::string::npos);
      CHECK(tops.spilled == 0);
    }
}

TEST_CASE("what a test's device file says is part of what its kernels are remembered by", "[descriptor]") {
  const compiler::LoweredMod lowered = compiler::lower(Attention{});
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, true);
  const auto plan = codegen::choose(f32, parts.facts, {}, nullptr, kernels_with_plain()).choices[0].plan;
  codegen::Source source = codegen::kernel_source(parts, plan);
  const std::string with = runtime::cuda::asked(source).content;
  source.headers = {};
  CHECK(runtime::cuda::asked(source).content != with);
}

}  // namespace attune::tests
