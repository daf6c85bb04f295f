// tests/codegen/choose.test.cpp — which kernels are tried for a call, and that the host counts their memory as they do
#include "codegen/choose.h"

#include <algorithm>
#include <attune/attune.h>
#include <fmt/format.h>

#include "codegen/headers.h"
#include "compiler/lower.h"
#include "runtime/cuda/nvrtc.h"
#include "tests/catch.h"

namespace attune::codegen {
namespace {

std::vector<std::string> kernels(const ForwardSpec& spec, const ForwardFacts& facts = {}) {
  std::vector<std::string> out;
  for (const ForwardChoice& c : choose(spec, facts).choices)
    out.push_back(fmt::format("{} {} x {}", c.plan.kernel, c.plan.m, c.plan.n));
  return out;
}

bool is_embedded(const std::string& kernel) {
  return std::ranges::any_of(headers(), [&](const Header& h) { return h.name == kernel + ".cuh"; });
}

}  // namespace

TEST_CASE("every width has kernels, and the portable one is the last", "[choose]") {
  for (int d = 1; d <= 256; ++d)
    for (const DType type : {DType::bf16, DType::f16, DType::f32})
      for (const int arch : {80, 86, 90, 100, 120}) {
        const ForwardChoices all = choose({.arch = arch, .dtype = type, .out = type, .d = d, .dv = 257 - d}, {});
        REQUIRE(all.choices.back().plan.kernel == "forward_sm80");
        for (const ForwardChoice& c : all.choices) {
          CHECK(c.plan.d >= d);
          CHECK(c.plan.dv >= 257 - d);
          CHECK(c.shared_bytes <= (c.copy_engine ? 227 : 99) * 1024);
          CHECK(c.threads % 32 == 0);
        }
        CHECK((all.choices.size() > 1) == all.story.empty());
      }
}

TEST_CASE("what a kernel cannot take leaves it out, and is said", "[choose]") {
  CHECK(kernels({}).front() == "forward_sm90 128 x 128");
  CHECK(choose({}, {}).story.empty());
  const auto story = [](const ForwardSpec& spec, const ForwardFacts& facts = {}) { return choose(spec, facts).story; };
  CHECK(story({.arch = 80}).find("compute capability 9.0") != std::string::npos);
  CHECK(story({.dtype = DType::f32, .out = DType::f32}).find("q, k and v hold f32") != std::string::npos);
  CHECK(story({.out = DType::f32}).find("writes o as bf16, not as f32") != std::string::npos);
  CHECK(story({.packed = true}).find("packed") != std::string::npos);
  CHECK(story({.boxes = false}).find("multiples of 16 bytes") != std::string::npos);
  CHECK(story({}, {.has_prob = true, .linear_prob = false}).find("no multiple of p") != std::string::npos);
  CHECK(story({}, {.has_prob = true, .linear_prob = true}).empty());
}

TEST_CASE("what no kernel takes is refused", "[choose]") {
  const auto refusal = [](const ForwardSpec& spec) -> std::string {
    try {
      choose(spec, {});
    } catch (const Error& e) {
      return e.code;
    }
    return "nothing";
  };
  CHECK(refusal({.arch = 75}) == "engine-arch");
  CHECK(refusal({.dtype = DType::f64}) == "engine-type");
  CHECK(refusal({.d = 257}) == "engine-width");
  CHECK(refusal({.dv = 300}) == "engine-width");
}

TEST_CASE("the host counts shared memory and columns as kernels do", "[choose]") {
  if (!runtime::cuda::nvrtc()) {
    WARN("[skip] " << runtime::cuda::nvrtc().refusal);
    return;
  }
  const compiler::Mod mod = compiler::lower(Attention{}).mod;
  const compiler::Cover cover = compiler::cover(mod.mask, mod.signature(), mod.score);
  for (const ForwardSpec& spec : {ForwardSpec{.d = 24, .dv = 40}, ForwardSpec{.out = DType::f32, .d = 16, .dv = 16}})
    for (const ForwardChoice& c : choose(spec, forward_facts(mod, cover, true)).choices) {
      if (!is_embedded(c.plan.kernel)) continue;
      Source source = forward_source(mod, cover, c.plan, spec.arch);
      const std::string shared = c.plan.kernel == "forward_sm90" ? "Shared90" : "Shared80";
      const int aligned = c.plan.kernel == "forward_sm90" ? 1024 : 0;
      source.text += fmt::format("static_assert(attune::{}<attune::fast::Tile>::bytes + {} == {});\n", shared, aligned,
                                 c.shared_bytes);
      INFO(c.plan.kernel);
      CHECK_NOTHROW(runtime::cuda::compile(source));
    }
}

}  // namespace attune::codegen
