// tests/codegen/splice.test.cpp — splicing a mod's PTX into a skeleton's: NVRTC's texts, damaged texts, and kernels of
// the corpus compared with kernels that are compiled as a whole

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fmt/format.h>
#include <future>
#include <thread>
#include <vector>

#include "codegen/choose/choose.h"
#include "codegen/choose/kernel.h"
#include "codegen/source/skeleton.h"
#include "compiler/lower.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/cuda/kernels/spliced.h"
#include "runtime/machine/background.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/catch.h"
#include "tests/codegen/machine_code.h"
#include "tests/numerics/corpus.h"
#include "tests/nvrtc.h"
#include "tests/turn.h"

namespace attune::tests {
namespace {

namespace cuda = runtime::cuda;
using codegen::splice;

constexpr const char* skeleton = R"(.version 9.0
.address_size 64

.weak .entry kernel(
	.param .align 64 .b8 kernel_param_0[128],
	.param .align 8 .b8 kernel_param_1[8]
)
{
	.reg .f32 	%f<4>;
	// begin inline asm
	attune_place_rest %f1, %f2, %r7;
	// end inline asm
	ret;
}
)";
constexpr const char* mod = R"(.version 9.0
.address_size 64
.global .align 4 .f32 unread = 0f7F800000;

.visible .entry attune_mod_rest(
	.param .align 8 .b8 attune_mod_rest_param_0[24]
)
{
	.reg .pred 	%p<2>;
	.reg .f32 	%f<4>;

	// begin inline asm
	attune_in %f1, 0;
	// end inline asm
	attune_in %r1, 1;
	ld.param.f32 	%f2, [attune_mod_rest_param_0+8];
	@%p1 bra 	$L__BB0_1;
	mad.lo.s32 %r2, %tid.x, 2, %clock64;
$L__BB0_1:
	mul.ftz.f32 	%f3, %f1, %f2;
	attune_out 0, %f3;
	ret;

}
)";

/// A text with one part replaced.
std::string with(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}
std::string why(const std::string& a, const std::string& b) { return splice(a, b).why_not; }

const CorpusMod& named(std::string_view name) {
  for (const CorpusMod& one : corpus())
    if (one.name == name) return one;
  throw std::runtime_error("no such mod");
}

/// A mod's parts for a kernel, and the kernel's plan.
struct Planned {
  Made made;
  compiler::LoweredMod lowered;
  codegen::GpuParts parts;
  codegen::KernelPlan plan;

  explicit Planned(const CorpusMod& of, bool backward = false, codegen::KernelSpec spec = {})
      : made(make(of, 1)), lowered(compiler::lower(made.attention)) {
    const codegen::Wanted none(lowered.mod.captures.size());
    parts = codegen::gpu_parts(lowered, true, backward ? &none : nullptr);
    const auto kernels = codegen::kernels(backward ? codegen::Way::backward : codegen::Way::forward);
    plan = codegen::choose(spec, parts.facts, codegen::call_kind(parts, codegen::Length::longer), nullptr, kernels)
               .choices.front()
               .plan;
  }
  Planned(const Planned&) = delete;
  codegen::SplitSource split() const { return codegen::split_source(parts, plan); }
};

CorpusMod of(std::string score, std::string mask = "kv <= q") {
  return {.name = "one of a test", .score = std::move(score), .mask = std::move(mask)};
}

}  // namespace

TEST_CASE("a function takes its place, with registers, labels and the parameter under the skeleton's names",
          "[splice]") {
  const codegen::SplicedPtx out = splice(skeleton, mod);
  CHECK(out.why_not.empty());
  for (const char* line : {"kernel_param_1[24]", ".reg .pred \t%attune_p<2>;", "mov.b32 %attune_f1, %f2;",
                           "[kernel_param_1+8]", "@%attune_p1 bra", "%tid.x, 2, %clock64",
                           "mul.ftz.f32 \t%attune_f3, %attune_f1, %attune_f2;", "mov.b32 %f1, %attune_f3;"})
    CHECK(out.text.find(line) != std::string::npos);
  CHECK(out.text.find("attune_place") == std::string::npos);
  CHECK(out.text.find("attune_in") == std::string::npos);
  const std::string around = codegen::around_ptx(out.text);
  CHECK(around.find(".version") == std::string::npos);
  CHECK(codegen::around_ptx("no header").empty());
  CHECK(codegen::around_ptx(".address_size 64\n)PTX\"").empty());
}

TEST_CASE("texts that NVRTC does not write are refused, with the reason", "[splice]") {
  CHECK(why("", mod) == "the skeleton's PTX begins \"\", and the mod's \".version 9.0\"");
  CHECK(why(with(skeleton, "9.0", "8.4"), mod) ==
        "the skeleton's PTX begins \".version 8.4\", and the mod's \".version 9.0\"");
  CHECK(why(with(skeleton, ".entry", ".other"), mod) == "the skeleton is not one kernel");
  CHECK(why(std::string(skeleton) + skeleton, mod) == "the skeleton is not one kernel");
  CHECK(why(std::string(skeleton) + ".func f", mod) == "the skeleton has functions besides its kernel");
  CHECK(why(skeleton, "") == "the mod has no functions");
  CHECK(why(skeleton, with(mod, "attune_mod_rest(", "other(")) == "the mod's PTX has another kernel");
  CHECK(why(with(skeleton, "place_rest", "place_sink"), mod) == "the mod has no sink()");
  CHECK(why(with(skeleton, ", %r7", ""), mod) == "a place has other operands than its function");
  CHECK(why(with(skeleton, "%r7;", "%r7"), mod) == "a place has no end");
  CHECK(why(skeleton, with(mod, "attune_in %r1, 1", "attune_in %r1, 2")) == "arguments are out of order");
  CHECK(why(skeleton, with(mod, "attune_out 0", "attune_out 7")) == "a result has no place");
  CHECK(why(skeleton, with(mod, "attune_out 0", "attune_out x")) == "a place has no number");
  CHECK(why(skeleton, with(mod, "mul.ftz", "call.uni f;\nmul.ftz")) == "the mod's PTX has call");
  CHECK(why(skeleton, with(mod, "%f1, %f2;", "%f1, unread;")) == "the mod reads unread of its PTX");
  CHECK(why(skeleton, with(mod, "\tret;\n", "\tret;\n\tmov.u32 %r1, %r2;\n\tret;\n")) ==
        "a function of the mod goes on after its end");
}

TEST_CASE("mods that branch at many pairs are refused: the assembler would leave more of them than the compiler",
          "[splice]") {
  const std::string_view place = "\tattune_place_rest %f1, %f2, %r7;\n",
                         inside = "\tmad.lo.s32 %r2, %tid.x, 2, %clock64;\n";
  const auto places = [&](std::size_t count) {
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += place;
    return with(skeleton, place, all);
  };
  const auto over = [&](std::size_t count) {  // how many instructions the mod's branch jumps
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += inside;
    return with(mod, inside, all);
  };
  CHECK(why(places(256), over(3)).empty());
  CHECK(why(places(257), over(3)) == "the mod branches too often");
  CHECK(why(places(257), over(2)).empty());
  // A division of integers counts as four.
  const auto with_inside = [&](std::string_view other) { return with(mod, inside, other); };
  for (const char* other : {"\trem.s32 %r2, %r1, %r3;\n", "\t@%p1 div.u64 %r2, %r1, %r3;\n"}) {
    CHECK(why(places(64), with_inside(other)).empty());
    CHECK(why(places(65), with_inside(other)) == "the mod branches too often");
  }
  CHECK(why(places(257), with_inside("\trem.s32 %r2, %r1, 10;\n")).empty());
  CHECK(why(places(257), with_inside("\tdiv.full.f32 %f2, %f1, %f2;\n")).empty());
}

TEST_CASE("a text that was cut off anywhere is refused or a kernel that NVRTC judges, never anything else",
          "[splice]") {
  const std::string whole_skeleton = skeleton, whole_mod = mod;
  for (std::size_t end = 0; end < whole_skeleton.size(); ++end) {
    const codegen::SplicedPtx out = splice(whole_skeleton.substr(0, end), whole_mod);
    CHECK(out.why_not.empty() == !out.text.empty());
  }
  for (std::size_t end = 0; end < whole_mod.size(); ++end) {
    const codegen::SplicedPtx out = splice(whole_skeleton, whole_mod.substr(0, end));
    CHECK(out.why_not.empty() == !out.text.empty());
  }
}

TEST_CASE("mods that differ in numbers, names and expressions share a skeleton", "[splice]") {
  const std::string one = Planned(of("20.0f * tanh(s / 20.0f)")).split().skeleton.text;
  CHECK(Planned(of("30.0f * tanh(s / 30.0f)")).split().skeleton.text == one);
  CHECK(Planned(of("s * sigmoid(s) + 1.0f")).split().skeleton.text != one);  // not bounded
  const std::string backward = Planned(of("20.0f * tanh(s / 20.0f)"), true).split().skeleton.text;
  CHECK(Planned(of("25.0f * tanh(s / 25.0f)"), true).split().skeleton.text == backward);
  CHECK(backward != one);
  CHECK(Planned(of("0.5f * s + f32(q)"), true).split().skeleton.text ==
        Planned(of("0.75f * s + 2.0f * f32(q)"), true).split().skeleton.text);
  const auto table = [](const char* name, const char* index = "q - kv + 28", bool back = false) {
    CorpusMod out = of(fmt::format("s + {}[h, {}]", name, index));
    out.captures = {{name, DType::f32, {4, 52}, Fill::normal}};
    return Planned(out, back).split();
  };
  CHECK(table("t").skeleton.text == table("a_longer_name").skeleton.text);
  CHECK(table("t").mod.text != table("a_longer_name").mod.text);
  // Torch's negative indices count from the end, and only a forward asks whether a tile needs clamping.
  CHECK(table("t", "q - kv + 28", true).skeleton.text ==
        table("t", "where(q - kv < 0, q - kv + 52, q - kv)", true).skeleton.text);
  CHECK(one.find("tanh") == std::string::npos);
}

TEST_CASE("which kernels have skeletons", "[splice]") {
  const Planned forward(named("causal")), with_term(named("alibi")), backward(named("alibi"), true);
  CHECK(codegen::why_not_spliced(forward.parts, forward.plan).empty());
  CHECK(codegen::why_not_spliced(with_term.parts, with_term.plan).empty());
  CHECK(codegen::why_not_spliced(backward.parts, backward.plan).empty());
  CHECK(cuda::splicing_of(forward.parts, forward.plan, cuda::CompiledFor::call) == cuda::Splicing::if_there);
  CHECK(cuda::splicing_of(with_term.parts, with_term.plan, cuda::CompiledFor::call) == cuda::Splicing::never);
  CHECK(cuda::splicing_of(forward.parts, forward.plan, cuda::CompiledFor::bundle) == cuda::Splicing::never);
  const Planned narrow(named("alibi"), false, {.d = 64, .dv = 64}), other(named("causal"), false, {.d = 96, .dv = 96});
  CHECK(cuda::splicing_of(narrow.parts, narrow.plan, cuda::CompiledFor::call) == cuda::Splicing::if_there);
  CHECK(cuda::splicing_of(other.parts, other.plan, cuda::CompiledFor::call) == cuda::Splicing::never);
  CHECK(cuda::splicing_of(backward.parts, backward.plan, cuda::CompiledFor::call) == cuda::Splicing::if_there);
  CHECK(cuda::splicing_of(backward.parts, backward.plan, cuda::CompiledFor::bundle) == cuda::Splicing::never);
  const Planned old(named("alibi"), false, {.arch = 80});
  CHECK(codegen::why_not_spliced(old.parts, old.plan) == "forward_sm80 has no skeleton");
  const Planned by_tanh(named("softcap"), false, {.exact = true}),
      narrow_by_tanh(named("softcap"), false, {.d = 64, .dv = 64, .exact = true});
  CHECK(codegen::why_not_spliced(by_tanh.parts, by_tanh.plan).empty());
  CHECK(cuda::splicing_of(by_tanh.parts, by_tanh.plan, cuda::CompiledFor::call) == cuda::Splicing::if_there);
  CHECK(cuda::splicing_of(narrow_by_tanh.parts, narrow_by_tanh.plan, cuda::CompiledFor::call) == cuda::Splicing::never);
  const Planned without_s(of("exp(0.5f * f32(q - kv))"));
  CHECK(codegen::why_not_spliced(without_s.parts, without_s.plan) == "its scores do not depend on s");
}

TEST_CASE("which kernels have two tiers", "[splice]") {
  const auto has_tiers = [](const Planned& planned) {
    return cuda::is_first_tier({.made = "spliced"}, planned.parts, planned.plan);
  };
  const Planned term(named("alibi")), without(named("causal")), backward(named("alibi"), true),
      narrow(named("alibi"), false, {.d = 64, .dv = 64}), other(named("alibi"), false, {.d = 96, .dv = 96});
  CHECK(has_tiers(term));
  CHECK(cuda::splicing_of(term.parts, term.plan, cuda::CompiledFor::first_tier) == cuda::Splicing::if_there);
  CHECK_FALSE(cuda::is_first_tier({.made = "it would spill"}, term.parts, term.plan));
  for (const Planned* one : {&without, &backward, &narrow}) {
    CHECK_FALSE(has_tiers(*one));
    CHECK(cuda::splicing_of(one->parts, one->plan, cuda::CompiledFor::first_tier) == cuda::Splicing::if_there);
  }
  // Nobody has measured these, so they are compiled as a whole at once.
  CHECK(cuda::splicing_of(other.parts, other.plan, cuda::CompiledFor::first_tier) == cuda::Splicing::never);
}

// No product is joined with a sum in one kernel and not in the other. That results are equal bit by bit is seen on a
// GPU: tests/gpu/tiers.test.cpp.
TEST_CASE("both tiers of the corpus do the same arithmetic", "[splice]") {
  if (skips_compiling()) return;
  int compared = 0;
  for (std::size_t nth = 0; const CorpusMod& one_of : corpus()) {
    std::optional<Planned> planned;
    try {
      planned.emplace(one_of);
    } catch (const Error&) {
      continue;  // not for a GPU
    }
    if (cuda::splicing_of(planned->parts, planned->plan, cuda::CompiledFor::first_tier) == cuda::Splicing::never ||
        cuda::splicing_of(planned->parts, planned->plan, cuda::CompiledFor::call) != cuda::Splicing::never)
      continue;
    if (!in_turn(nth++, 6)) continue;
    CAPTURE(one_of.name);
    const codegen::Source source = codegen::kernel_source(planned->parts, planned->plan);
    const cuda::Binary first = cuda::compile_spliced(source, planned->parts, planned->plan);
    if (first.made != "spliced") continue;
    const cuda::Binary last = cuda::compile(source);
    const MachineCode one(first.cubin, first.symbol), other(last.cubin, last.symbol);
    CHECK(one.ffma() == other.ffma());
    CHECK(one.mufu() == other.mufu());
    CHECK(one.wgmma() == other.wgmma());
    // One of them computes a few values of rows and columns once that the other computes twice.
    CHECK(std::abs(one.fadd() - other.fadd()) <= 2);
    CHECK(std::abs(one.fmul() - other.fmul()) <= 4);
    ++compared;
  }
  CHECK(compared > (turn() ? 1 : 5));
}

TEST_CASE("spliced kernels of the corpus have the registers of whole ones, and no spills that these have not",
          "[splice]") {
  if (skips_compiling()) return;
  struct Case {
    const char* name;
    bool backward = false, exact = false;
  };
  std::vector<Case> cases{{.name = "softcap", .exact = true}};
  for (const char* name : {"plain", "softcap", "alibi", "relative_table", "documents", "window", "key_bias"})
    for (const bool backward : {false, true}) cases.push_back({name, backward});
  for (std::size_t nth = 0; const auto& [name, backward, exact] : cases) {
    if (!in_turn(nth++, 8)) continue;
    CAPTURE(name, backward, exact);
    const Planned planned(named(name), backward, {.exact = exact});
    const codegen::Source source = codegen::kernel_source(planned.parts, planned.plan);
    const cuda::Binary whole = cuda::compile(source);
    const cuda::Binary spliced = cuda::compile_spliced(source, planned.parts, planned.plan);
    CAPTURE(spliced.made);
    CHECK(spliced.symbol == whole.symbol);
    CHECK(spliced.spilled <= whole.spilled);
    CHECK(spliced.registers <= whole.registers);
    CHECK(spliced.warnings.empty());
    CHECK((spliced.made == "spliced" || spliced.made.find("spill") != std::string::npos));
    CHECK(static_cast<double>(spliced.cubin.size()) < 1.05 * static_cast<double>(whole.cubin.size()) + 2000);
  }
}

TEST_CASE("with a skeleton that is not what it should be, a kernel is compiled as a whole", "[splice]") {
  if (skips_compiling()) return;
  const Planned planned(of("s + 0.25f * f32(q + kv)", "true"), false, {.d = 64, .dv = 64, .packed = true});
  const codegen::Source source = codegen::kernel_source(planned.parts, planned.plan);
  const codegen::SplitSource split = planned.split();
  const cuda::Binary real = cuda::compile_to_ptx(split.skeleton);
  // Its checksums are right, as if another program had written it.
  runtime::objects().get(cuda::asked_for_skeleton(split.skeleton), [&] {
    return runtime::CacheEntry{{{"symbol", real.symbol}}, real.ptx.substr(0, real.ptx.size() / 2)};
  });
  const cuda::Binary made = cuda::compile_spliced(source, planned.parts, planned.plan, cuda::Splicing::if_there);
  CHECK(made.made.starts_with("NVRTC refuses: "));
  const cuda::Binary whole = cuda::compile(source);
  CHECK(made.symbol == whole.symbol);
  CHECK(made.registers == whole.registers);
  CHECK(made.cubin.size() == whole.cubin.size());
}

TEST_CASE("a missing skeleton is not waited for: it is compiled in the background, for the next mod",
          "[splice][cold]") {
  if (skips_compiling()) return;
  const auto made = [](const Planned& planned) {
    return cuda::compile_spliced(codegen::kernel_source(planned.parts, planned.plan), planned.parts, planned.plan,
                                 cuda::Splicing::if_there)
        .made;
  };
  const auto line = [](int i) { return of(fmt::format("s + {}.5f * f32(q - kv)", i), "true"); };
  constexpr codegen::KernelSpec spec{.d = 64, .dv = 64, .max = true};
  const std::size_t before = cuda::compiled_skeletons();
  std::vector<std::string> all(3);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i)
    threads.emplace_back([&, i] { all[i] = made(Planned(line(static_cast<int>(i)), false, spec)); });
  for (std::thread& one : threads) one.join();
  // A thread may be so late that another one's skeleton is there.
  CHECK(std::ranges::count(all, "the tile's skeleton was not compiled yet") >= 1);
  runtime::wait_for_spare_time();
  CHECK(cuda::compiled_skeletons() - before == 1);
  CHECK(made(Planned(line(3), false, spec)) == "spliced");
  CHECK(cuda::compiled_skeletons() - before == 1);
}

TEST_CASE("that a mod spills in a new skeleton is found out in the background, once for all mods", "[splice][cold]") {
  if (skips_compiling()) return;
  const auto made = [](std::string score, float number) {
    CorpusMod numbered = of(score.replace(score.find("NUMBER"), 6, fmt::format("{:.2f}f", number)));
    if (score.find("t[") != std::string::npos) numbered.captures = {{"t", DType::f32, {4, 16}, Fill::normal}};
    const Planned planned(numbered, true);
    return cuda::compile_spliced(codegen::kernel_source(planned.parts, planned.plan), planned.parts, planned.plan,
                                 cuda::Splicing::if_there)
        .made;
  };
  // Which of these spills no less than as a whole is up to the assembler.
  for (const char* score :
       {"0.5f * s * (1.0f + erf(NUMBER * s))", "s + sum(i, 16, t[h, i] * cos(NUMBER * f32(i) * s))"}) {
    CHECK(made(score, 0.75f) == "the tile's skeleton was not compiled yet");
    runtime::wait_for_spare_time();
    const std::string other = made(score, 0.5f);
    if (other == "another mod spilled registers in this skeleton") return;
    CHECK(other == "spliced");
  }
  FAIL("no mod spills");
}

TEST_CASE("a mod that spills in a skeleton is assembled with more registers, and the next one so at once",
          "[splice][cold]") {
  if (skips_compiling()) return;
  const auto made = [](float number) {
    CorpusMod numbered = of(fmt::format("s + {:.2f}f * slope[h] * f32(kv - q)", number));
    numbered.captures = {{"slope", DType::f32, {4}, Fill::normal}};
    const Planned planned(numbered, true);
    return cuda::compile_spliced(codegen::kernel_source(planned.parts, planned.plan), planned.parts, planned.plan);
  };
  const auto assemblies = [](const cuda::Binary& of) {
    return std::ranges::count(of.phases, "assembler", &watch::Built::Phase::name);
  };
  const cuda::Binary first = made(0.75f);
  if (assemblies(first) < 2) {
    std::puts("[skip] this assembler spills none");
    return;
  }
  CHECK(first.made == "spliced");
  CHECK(first.spilled == 0);
  const cuda::Binary next = made(0.5f);
  CHECK(assemblies(next) == 1);
  CHECK(next.made == "spliced");
  CHECK(next.spilled == 0);
}

TEST_CASE("a process that ends interrupts what is compiled in the background", "[splice]") {
  if (skips_compiling()) return;
  if (cuda::nvrtc().major == 12 && cuda::nvrtc().minor < 9) {
    WARN("[skip] this NVRTC cannot be interrupted");
    return;
  }
  const Planned planned(named("alibi"));
  const codegen::Source source = codegen::kernel_source(planned.parts, planned.plan);
  std::promise<void> begins;
  std::string said;
  runtime::in_background([&] {
    begins.set_value();
    try {
      cuda::compile(source);
    } catch (const Bug& refused) {
      said = refused.what();
    }
  });
  begins.get_future().wait();
  runtime::stop_background();
  CHECK(said.find("NVRTC_ERROR_CANCELLED") != std::string::npos);
  CHECK(cuda::compile(source).spilled == 0);
}

TEST_CASE("threads that ask for mods of one skeleton at once compile it once", "[splice]") {
  if (skips_compiling()) return;
  const std::size_t before = cuda::compiled_skeletons();
  std::vector<std::thread> threads;
  std::atomic<int> spliced = 0;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([i, &spliced] {
      const Planned planned(of(fmt::format("s + {}.5f * f32(q - kv)", i + 1), "true"), false, {.d = 64, .dv = 64});
      const codegen::Source source = codegen::kernel_source(planned.parts, planned.plan);
      spliced += cuda::compile_spliced(source, planned.parts, planned.plan).made == "spliced";
    });
  for (std::thread& one : threads) one.join();
  CHECK(spliced == 3);
  CHECK(cuda::compiled_skeletons() - before <= 1);  // none, if the cache on disk has it
}

}  // namespace attune::tests
