// tests/codegen/kernel_source.test.cpp — sources of CUDA compared with committed texts and compiled by NVRTC; the bytes
// of their arguments
#include "codegen/source/source.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <set>
#include <sstream>

#include "codegen/choose/call_choices.h"
#include "codegen/choose/choose.h"
#include "codegen/cuda/headers.h"
#include "codegen/source/user_source.h"
#include "compiler/bind.h"
#include "compiler/lower.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/catch.h"
#include "tests/codegen/probe.h"
#include "tests/golden.h"
#include "tests/numerics/masks.h"
#include "tests/nvrtc.h"
#include "tests/turn.h"

namespace attune::tests {
namespace {

using codegen::KernelPlan, codegen::Source;

struct Lowered {
  Made made;
  compiler::LoweredMod lowered;

  explicit Lowered(const CorpusMod& mod) : Lowered(make(mod, 1)) {}
  explicit Lowered(Made m) : made(std::move(m)), lowered(compiler::lower(made.attention)) {}
};

const CorpusMod& named(std::string_view name) {
  for (const CorpusMod& mod : corpus())
    if (mod.name == name) return mod;
  throw std::runtime_error("no such mod");
}

std::vector<CorpusMod> everything() {
  std::vector<CorpusMod> all = corpus();
  for (const MaskCase& mask : masks()) all.push_back(mask.mod);
  return all;
}

void compiles(const Source& source, int most_spilled) {
  INFO(source.text);
  const runtime::cuda::Binary binary = runtime::cuda::compile(source);
  INFO(binary.log);
  CHECK(binary.cubin.starts_with("\x7f"
                                 "ELF"));
  CHECK(binary.spilled <= most_spilled);
  CHECK(binary.warnings.empty());
  CHECK(binary.registers > 0);
}

/// Expressions on lines of their own, counted from this one.
constexpr int line = __LINE__;
const Attention written_in_lines{.score =
                                     [](Float s, At at) {
                                       Float x = 30.0f * tanh(s / 30.0f) + f32(at.kv - at.q);
                                       for (int i = 0; i < 4; ++i) x = sin(x * x + x);
                                       return x * 2.0f;
                                     },
                                 .mask = [](At at) { return (at.q + at.kv) % 3 == 0; }};

}  // namespace

TEST_CASE("the source of a part adds what the whole call has before it", "[cuda]") {
  const Attention attention{.score = [](Float s, At at) { return s + f32(at.head + at.q_len); },
                            .mask = [](At at) { return at.kv <= at.q + at.kv_len && at.batch != at.kv; },
                            .prob = [](Float p, At) { return where(attune::random(7) < 0.5f, p, 0); }};
  const compiler::LoweredMod lowered = compiler::lower(
      compiler::part_of(compiler::trace(attention), compiler::PartSink::kept));
  const codegen::KernelSpec spec{.arch = 90, .d = 64, .dv = 64};
  const codegen::GpuParts parts = codegen::forward_parts(lowered, spec);
  const KernelPlan plan =
      codegen::choose(spec, parts.facts, codegen::call_kind(parts, codegen::Length::longer)).choices.front().plan;
  const Source source = codegen::kernel_source(parts, plan);
  for (const char* local :
       {"const Int b = u_first_b + at.b;", "const Int h = u_first_h + at.h;",
        "const Int q_len = u_more_q_len + at.q_len;", "const Int kv_len = u_more_kv_len + at.kv_len;"})
    CHECK(source.text.find(local) != std::string::npos);
  CHECK(source.text.find("= at.") == std::string::npos);
  if (!skips_compiling()) compiles(source, 16);  // random numbers take many registers
}

TEST_CASE("every function whose last bit may decide a choice between positions is computed exactly", "[cuda]") {
  const codegen::KernelSpec spec{.arch = 90, .d = 64, .dv = 64, .exact = false};
  const auto space = [&](const ir::Expr& value) {
    compiler::BoundMod mod = compiler::trace(Attention{});
    mod.mod.mask = ir::op(ir::Op::Lt, value, ir::real(0.3f));
    const compiler::LoweredMod lowered = compiler::lower(std::move(mod));
    return codegen::source_space(codegen::forward_parts(lowered, spec), {.spec = spec});
  };
  const ir::Expr q = ir::input(ir::Input::Q), kv = ir::input(ir::Input::KV);
  const ir::Expr x = ir::op(ir::Op::F32, ir::op(ir::Op::Sub, kv, q)), y = ir::op(ir::Op::F32, q);
  CHECK(space(x) == "fast");
  CHECK(space(ir::op(ir::Op::Floor, x)) == "fast");
  CHECK(space(ir::op(ir::Op::Div, x, y)) == "exact");
  for (std::size_t i = 0; i < ir::op_rows.size(); ++i) {
    const auto op = static_cast<ir::Op>(i);
    const ir::OpRow& row = ir::op_rows[i];
    if (row.takes != ir::Takes::Float || op == ir::Op::Custom || ir::rounds(op)) continue;
    INFO(row.name);
    CHECK(space(row.args == 1 ? ir::op(op, x) : ir::op(op, x, y)) == "exact");
  }
}

TEST_CASE("the kernels beside that mods share have the same source for each of them", "[cuda]") {
  const Lowered causal(named("causal")), other(named("alibi"));
  const codegen::KernelSpec spec{.arch = 90, .d = 128, .dv = 128};
  int shared = 0;
  for (const codegen::Way way : {codegen::Way::forward, codegen::Way::backward}) {
    const auto parts_of = [&](const Lowered& of) {
      const codegen::Wanted none(of.lowered.mod.captures.size());
      return way == codegen::Way::forward ? codegen::forward_parts(of.lowered, spec)
                                          : codegen::gpu_parts(of.lowered, true, &none);
    };
    const codegen::GpuParts parts = parts_of(causal), others = parts_of(other);
    for (const codegen::KernelDescriptor* kernel : codegen::kernels(way)) {
      const KernelPlan plan{.kernel = kernel, .spec = spec};
      for (const codegen::Companion* one : kernel->companions) {
        if (!one->of_any_mod) continue;
        INFO(kernel->name << " " << one->name);
        CHECK(one->source_of(parts, plan).text == one->source_of(others, plan).text);
        ++shared;
      }
    }
  }
  CHECK(shared > 0);
}

TEST_CASE("biases that Hopper's forward copies, computes once a distance or raises maxima for do not spill", "[cuda]") {
  if (skips_compiling()) return;
  const std::vector<CorpusCapture> captures{{"slope", DType::f32, {4}},
                                            {"key", DType::bf16, {28}},
                                            {"table", DType::f32, {4, 64}},
                                            {"bucket", DType::i32, {57}, Fill::indices, 64},
                                            {"dense", DType::bf16, {4, 24, 28}}};
  std::size_t nth = 0;
  for (const char* score :
       {"s + dense[h, q, kv]", "9.0f * tanh((s + slope[h] * dense[0, q, kv]) / 9.0f)",
        "s + table[h, bucket[clamp(q - kv + 28, 0, 56)]]", "s - slope[h] * f32(abs(kv - q))", "s + key[kv]"})
    for (const std::int64_t d : {64, 128}) {
      // At 64, columns that lanes share spill in the first tile, whatever happens to maxima.
      if (d == 64 && score == std::string_view("s + key[kv]")) continue;
      if (!in_turn(nth++, 3)) continue;
      const Lowered lowered(CorpusMod{.name = "bias", .score = score, .mask = "kv <= q", .captures = captures});
      const codegen::KernelSpec spec{.arch = 90, .d = d, .dv = d};
      const codegen::GpuParts parts = codegen::forward_parts(lowered.lowered, spec);
      const auto kind = codegen::call_kind(parts, codegen::Length::longer);
      compiles(codegen::kernel_source(parts, codegen::choose(spec, parts.facts, kind).choices[0].plan), 0);
    }
}

TEST_CASE("dense biases that Hopper's backward copies hardly spill", "[cuda]") {
  if (skips_compiling()) return;
  struct Of {
    const char* score;
    DType type;
    std::size_t tensors;
    int copies;
  };
  for (const Of& of : {Of{"s + dense[h, q, kv]", DType::bf16, 1, 1}, Of{"s + dense[h, q, kv]", DType::f32, 1, 2},
                       Of{"s + dense[h, q, kv] + more[h, q, kv]", DType::bf16, 2, 2}})
    for (const std::int64_t d : {64, 128}) {
      if (!in_turn((of.copies == 2) == (d == 64), 2)) continue;
      std::vector<CorpusCapture> captures{{"dense", of.type, {4, 24, 28}}, {"more", of.type, {4, 24, 28}}};
      captures.resize(of.tensors);
      const codegen::Wanted none(of.tensors);
      const Lowered lowered(
          CorpusMod{.name = "bias", .score = of.score, .mask = "kv <= q", .captures = std::move(captures)});
      const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true, &none);
      const auto kind = codegen::call_kind(parts, codegen::Length::longer);
      const auto choices = codegen::choose({.arch = 90, .d = d, .dv = d}, parts.facts, kind, nullptr,
                                           codegen::kernels(codegen::Way::backward))
                               .choices;
      REQUIRE(choices.front().plan.variant.of("copies") == of.copies);
      compiles(codegen::kernel_source(parts, choices.front().plan), 8);
    }
}

TEST_CASE("sums by head and by key take few registers of Hopper's backward", "[cuda]") {
  if (skips_compiling()) return;
  struct Of {
    const char *score, *prob;
    int narrow, wide;  ///< orders for heads 64 and 128 wide
  };
  for (const Of& of : {Of{"s", "p * gate[h]", 0, 2}, Of{"s", "p * sigmoid(key[kv])", 0, 2},
                       Of{"s + key[kv]", "p", 1, 2}, Of{"s + gate[h] * f32(kv - q)", "p", 1, 2}})
    for (const std::int64_t d : {64, 128}) {
      const Lowered lowered(CorpusMod{.name = "sums",
                                      .score = of.score,
                                      .mask = "kv <= q",
                                      .prob = of.prob,
                                      .captures = {{"gate", DType::f32, {4}}, {"key", DType::f32, {28}}}});
      const codegen::Wanted all(lowered.lowered.mod.captures.size(), true);
      const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true, &all);
      const auto choices = codegen::choose({.arch = 90, .d = d, .dv = d}, parts.facts,
                                           codegen::call_kind(parts, codegen::Length::longer), nullptr,
                                           codegen::kernels(codegen::Way::backward))
                               .choices;
      const int order = d == 64 ? of.narrow : of.wide;
      const auto one = std::ranges::find_if(
          choices, [&](const codegen::KernelChoice& tried) { return tried.plan.variant.of("order") == order; });
      REQUIRE(one != choices.end());
      INFO(of.score << ' ' << of.prob << ' ' << d);
      compiles(codegen::kernel_source(parts, one->plan), std::string_view(of.prob) != "p" && d == 128 ? 48 : 4);
    }
}

TEST_CASE("a kernel that cannot sum a gradient names the reads, as the user wrote them", "[cuda]") {
  const Lowered lowered(
      CorpusMod{.name = "wide", .score = "s + dense[h, q, kv]", .captures = {{"dense", DType::bf16, {4, 24, 28}}}});
  const codegen::CallSpec call{.spec = {.arch = 90, .d = 256, .dv = 256},
                               .backward = codegen::Wanted(lowered.lowered.mod.captures.size(), true)};
  const std::vector<std::string> story = codegen::call_choices(lowered.lowered, call).story;
  CHECK(std::ranges::count(story, "queries_sm90 takes the call without the gradients of dense[h, q, kv]") == 1);
  CHECK(std::ranges::count(story, "keys_sm90 takes the call without the gradients of dense[h, q, kv]") == 1);
}

TEST_CASE("the sources of canonical mods are as committed", "[cuda]") {
  for (const char* name : {"plain", "causal", "alibi", "softcap", "documents", "window", "relative_table", "dropout",
                           "everything", "small_network"}) {
    const Lowered lowered(named(name));
    const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true);
    const auto kind = codegen::call_kind(parts, codegen::Length::longer);
    const KernelPlan plan = codegen::choose({}, parts.facts, kind).choices[0].plan;
    const Source source = codegen::kernel_source(parts, plan);
    golden(fmt::format("codegen/cuda.{}", name), source.text);
  }
  const Lowered lowered(named("documents_causal"));
  golden("codegen/cuda.cover", codegen::cover_source(lowered.lowered, false, 90).text);
}

TEST_CASE("a source that knows its lines leads to the user's, and its own are where they are", "[cuda]") {
  const Lowered lowered(Made{written_in_lines, {}, {}});
  const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true);
  const KernelPlan plan = codegen::choose({}, parts.facts).choices[0].plan;
  const Source plain = codegen::kernel_source(parts, plan);
  const Source lined = codegen::kernel_source(parts, plan, "a \"folder\" \\/page.cu");
  CHECK(plain.text.find("#line") == std::string::npos);
  CHECK(std::ranges::count(plain.options, codegen::line_option) == 0);
  CHECK(lined.options.back() == codegen::line_option);
  CHECK(lined.symbol == plain.symbol);
  std::set<int> users;
  std::istringstream lines(lined.text);
  int number = 1;
  for (std::string text; std::getline(lines, text); ++number) {
    if (!text.starts_with("#line ")) continue;
    const int said = std::stoi(text.substr(6));
    if (text.ends_with("page.cu\""))
      CHECK(text == fmt::format("#line {} \"a _folder_ _/page.cu\"", number + 1));
    else if (text == fmt::format("#line {} \"{}\"", said, __FILE__))
      users.insert(said - line);
    else
      FAIL_CHECK(text);
  }
  CHECK(users == std::set<int>{3, 4, 7});
  // An attention written as text has no source file, so all lines are the source's own.
  const Lowered text(named("alibi"));
  const codegen::GpuParts of_text = codegen::gpu_parts(text.lowered, true);
  CHECK(codegen::kernel_source(of_text, plan, "page.cu").text ==
        "#line 2 \"page.cu\"\n" + codegen::kernel_source(of_text, plan).text);
}

TEST_CASE("a source that knows its lines compiles", "[cuda]") {
  if (skips_compiling()) return;
  const Lowered lowered(Made{written_in_lines, {}, {}});
  const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true);
  const KernelPlan plan = codegen::choose({.arch = 80, .d = 64, .dv = 64}, parts.facts).choices[0].plan;
  compiles(codegen::kernel_source(parts, plan, "a \"folder\" \\/page.cu"), 128);
}

TEST_CASE("masks of a column's fields, a row's, both and neither compile with the kernel for Hopper", "[cuda]") {
  if (skips_compiling()) return;
  const auto doc = Device::cpu().array<int>({300}, "doc");
  const Mask masks[] = {[=](At at) { return doc[at.kv] == 3; }, [=](At at) { return doc[at.q] == 3; },
                        [=](At at) { return doc[at.q] == doc[at.kv] && at.kv <= at.q; },
                        [=](At at) { return doc[at.q] < doc[at.kv] || (at.q + at.kv) % 3 == 0; },
                        [=](At at) { return doc[at.head] < at.kv; }};
  for (const Mask& mask : masks) {
    const Lowered lowered(Made{{.mask = mask}, {}, {}});
    const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true);
    std::vector<codegen::KernelChoice> candidates =
        codegen::choose({.arch = 90, .d = 64, .dv = 64}, parts.facts).choices;
    std::erase_if(candidates, [](const codegen::KernelChoice& c) { return c.plan.kernel->takes_any; });
    REQUIRE(!candidates.empty());
    const KernelPlan& plan = candidates.back().plan;  // the smallest tile
    compiles(codegen::kernel_source(parts, plan), 0);
  }
}

TEST_CASE("every mod of the corpus and every mask compiles, unspilled", "[cuda]") {
  if (skips_compiling()) return;
  // Each mod on one architecture, in turn: only parsing may fail, and parsing is the same on all.
  constexpr std::array archs{80, 90, 120};
  std::size_t next = 0;
  for (const CorpusMod& mod : everything()) {
    const int arch = archs[next % archs.size()];
    if (!in_turn(next++, 4)) continue;
    INFO(mod.name);
    const Lowered lowered(mod);
    const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true);
    compiles(probe_source(parts, arch, next % 2 == 0), 0);
    if (parts.facts.listed)
      // It runs once a call, over tiles rather than pairs, so a few words in local memory cost nothing.
      compiles(codegen::cover_source(lowered.lowered, false, arch), 128);
  }
}

}  // namespace attune::tests
