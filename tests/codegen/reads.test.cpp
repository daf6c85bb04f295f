// tests/codegen/reads.test.cpp — reads that need no clamping within a tile, and columns that lanes share
#include "codegen/facts/reads.h"

#include <limits>

#include "codegen/choose/choose.h"
#include "codegen/source/source.h"
#include "compiler/lower.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/catch.h"
#include "tests/codegen/machine_code.h"
#include "tests/numerics/corpus.h"
#include "tests/nvrtc.h"

namespace attune::tests {
namespace {

const std::vector<CorpusCapture> captures{{"table", DType::f32, {64}},      {"bias", DType::f32, {24, 28}},
                                          {"of_head", DType::f32, {4, 28}}, {"doc", DType::i32, {28}, Fill::documents},
                                          {"half", DType::bf16, {24, 28}},  {"of_all", DType::f16, {2, 4, 24, 28}}};

/// For the first tile without numbers for each distance.
codegen::Source source_of(const std::string& score, const std::string& mask = "true", bool offsets64 = false) {
  const Made made = make({.name = "reads", .score = score, .mask = mask, .captures = captures}, 1);
  const compiler::LoweredMod lowered = compiler::lower(made.attention);
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, true);
  const std::vector<codegen::KernelChoice> choices =
      codegen::choose({.strides = {.offsets64 = offsets64}}, parts.facts).choices;
  const auto first = std::ranges::find_if(
      choices, [](const codegen::KernelChoice& c) { return c.plan.variant.of("distances").value_or(0) == 0; });
  REQUIRE(first != choices.end());
  return codegen::kernel_source(parts, first->plan);
}
/// Loads from global memory in the machine code of Hopper's backward of a causal call that reads pair by pair.
int backward_loads(const std::string& score) {
  const Made made = make({.name = "reads", .score = score, .mask = "kv <= q", .captures = captures}, 1);
  const compiler::LoweredMod lowered = compiler::lower(made.attention);
  const codegen::Wanted no_gradients(lowered.mod.captures.size());
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, true, &no_gradients);
  const codegen::KernelChoices choices = codegen::choose({.strides = {.unaligned_captures = true}}, parts.facts,
                                                         codegen::call_kind(parts, codegen::Length::longer), nullptr,
                                                         codegen::kernels(codegen::Way::backward));
  const codegen::KernelPlan& plan = choices.choices.front().plan;
  REQUIRE(std::string(plan.kernel->name) == "backward_sm90");
  const runtime::cuda::Binary made_code = runtime::cuda::compile(codegen::kernel_source(parts, plan));
  return MachineCode(made_code.cubin, made_code.symbol).loads();
}
bool has(const codegen::Source& source, const std::string& text) { return source.text.find(text) != std::string::npos; }

}  // namespace

TEST_CASE("reads whose indices are linear in q and kv go unclamped within a tile", "[reads]") {
  for (const std::string score : {"s + table[q - kv + 31]", "s + bias[q, kv]", "s + bias[kv - q, q - kv + 5]",
                                  "s + of_head[h * 3, q - kv] * table[kv - q + 5]"}) {
    INFO(score);
    CHECK(has(source_of(score), "is_inside"));
  }
  for (const std::string score : {"s + table[q * kv]", "s + table[doc[q] - kv]", "s + table[abs(q - kv)]",
                                  "s + table[kv + 2 * q]", "s + table[q - kv] * table[max(q, kv)]", "s + table[h]"}) {
    INFO(score);
    CHECK_FALSE(has(source_of(score), "is_inside"));
  }
  // Masks are evaluated in partial tiles only, where nothing is known about indices.
  CHECK_FALSE(has(source_of("s", "table[q - kv + 31] > 0.0f"), "is_inside"));
}

TEST_CASE("reads of 16 bits along kv can be copied", "[reads]") {
  const auto copied = [](const std::string& score) {
    const Made made = make({.name = "reads", .score = score, .captures = captures}, 1);
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    const codegen::GpuParts parts = codegen::gpu_parts(lowered, true);
    CHECK(parts.copied.size() == static_cast<std::size_t>(parts.facts.copied_reads));
    std::string out;
    for (const ir::Expr& read : parts.copied)
      out += (out.empty() ? "" : " and ") + ir::print(read, lowered.mod.signature());
    return out;
  };
  CHECK(copied("s + half[q, kv]") == "half[q, kv]");
  CHECK(copied("tanh(s * of_all[b, h, q, kv])") == "of_all[b, h, q, kv]");
  CHECK(copied("s + bias[q, kv] + half[h, kv] * half[doc[q], kv]").starts_with("half["));
  CHECK(copied("s + of_all[b, h, q, kv] + half[q, kv]") == "of_all[b, h, q, kv] and half[q, kv]");
  CHECK(copied("s + half[q, kv] + half[q + 1, kv] + of_all[b, h, q, kv]") == "half[q, kv] and half[row0, kv]");
  const std::array indices{ir::input(ir::Input::Q), ir::input(ir::Input::KV)};
  CHECK(codegen::has_linear_line(ir::read(0, ir::Type::F32, indices)));
  for (const std::string score : {"s + bias[q, kv]", "s + half[h, kv]", "s + half[q, kv + 1]", "s + half[kv, q]",
                                  "s + half[kv - q, kv]", "s + half[i32(s), kv]"})
    CHECK(copied(score) == "");
}

TEST_CASE("a backward may copy reads of f32 too", "[reads]") {
  const Made made = make({.name = "reads", .score = "s + bias[q, kv]", .captures = captures}, 1);
  const compiler::LoweredMod lowered = compiler::lower(made.attention);
  const codegen::Wanted none(lowered.mod.captures.size());
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, true, &none);
  CHECK(parts.facts.copied_reads == 1);
  CHECK(parts.facts.copies_f32);
}

TEST_CASE("rows are copied if they are aligned and as long as the keys", "[reads]") {
  alignas(16) float memory[8];
  const auto unaligned = [&](DType type, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
                             std::int64_t keys, std::size_t first = 0) {
    Tensor t(memory + first, type, shape);
    std::ranges::copy(strides, t.strides.begin());
    return codegen::has_unaligned_rows(t, keys);
  };
  CHECK_FALSE(unaligned(DType::bf16, {2, 8, 16}, {128, 16, 1}, 16));
  CHECK_FALSE(unaligned(DType::f16, {2, 1, 8, 16}, {8, 3, 0, 1}, 9));
  CHECK_FALSE(unaligned(DType::f32, {8, 12}, {12, 1}, 12));
  CHECK(unaligned(DType::bf16, {8, 12}, {12, 1}, 12));
  CHECK(unaligned(DType::f32, {8, 12}, {13, 1}, 12));
  CHECK(unaligned(DType::f32, {8, 12}, {12, 1}, 13));
  CHECK(unaligned(DType::f32, {12, 12}, {1, 12}, 12));
  CHECK(unaligned(DType::f32, {8, 12}, {12, 1}, 12, 1));
}

TEST_CASE("what reads by distance is computed once a distance", "[reads]") {
  const auto distant = [](const std::string& score) {
    const Made made = make({.name = "reads", .score = score, .captures = captures}, 1);
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    const codegen::GpuParts parts = codegen::gpu_parts(lowered, true);
    CHECK((parts.distant != nullptr) == (parts.facts.distant_reads > 0));
    return parts.distant ? ir::print(parts.distant, {}) : "";
  };
  CHECK(distant("s + table[q - kv + 31] * table[kv - q]").find("* 1.442695f") != std::string::npos);
  for (const std::string score : {"s + of_head[h, doc[clamp(kv - q, 0, 9)]]", "s + table[q - kv + 31]",
                                  "tanh(s + table[q - kv + 31] * table[kv - q])"})
    CHECK(distant(score) != "");
  for (const std::string score : {"tanh(s + table[q - kv + 31])", "s + bias[q, kv]", "s + of_head[h, kv]",
                                  "s + f32(q - kv)", "s + table[q + kv]", "s + table[i32(s) + q - kv]"})
    CHECK(distant(score) == "");
}

TEST_CASE("a score's only tanh is computed by itself", "[reads]") {
  const auto argument = [](const std::string& score) {
    const Made made = make({.name = "reads", .score = score, .captures = captures}, 1);
    const compiler::LoweredMod lowered = compiler::lower(made.attention);
    const codegen::GpuParts parts = codegen::gpu_parts(lowered, true);
    CHECK((parts.tanh != nullptr) == parts.facts.has_tanh);
    return parts.tanh ? ir::print(parts.tanh->args[0], {}) : "";
  };
  CHECK(argument("30 * tanh(s / 30)").find("s") != std::string::npos);
  CHECK(argument("tanh(s + table[kv]) * tanh(f32(q))") != "");
  for (const std::string score :
       {"s", "s + tanh(table[kv])", "tanh(s) + tanh(s * s)", "s + tanh(s)", "sum(i, 4, tanh(s * f32(i)))"})
    CHECK(argument(score) == "");
}

TEST_CASE("pairs of a lane at one distance share what Hopper's backward reads", "[reads]") {
  if (skips_compiling()) return;
  // Of the 32 pairs of a step in a lane, half have the distance of another one; the compiler may read some twice.
  CHECK(backward_loads("s + table[q - kv + 31]") <= backward_loads("s + bias[q, kv]") - 12);
}

TEST_CASE("lanes share columns that read captured tensors", "[reads]") {
  CHECK(has(source_of("s + of_head[h, kv]"), "in_scores = true"));
  CHECK(has(source_of("s", "doc[q] == doc[kv]"), "in_scores = false"));
  CHECK_FALSE(has(source_of("s + f32(kv - q)"), "of_lane"));
}

TEST_CASE("offsets are as offsets64 as tensors need", "[reads]") {
  Tensor t;
  t.rank = 2;
  t.shape = {3, 1000};
  t.strides = {(1ll << 30) - 500, 1};
  CHECK_FALSE(codegen::reach_far(std::span(&t, 1)));
  t.strides[0] = 1ll << 30;
  CHECK(codegen::reach_far(std::span(&t, 1)));
  t.strides[0] = -(1ll << 30);
  CHECK(codegen::reach_far(std::span(&t, 1)));
  t.shape[0] = 1;
  CHECK_FALSE(codegen::reach_far(std::span(&t, 1)));
  t.shape[0] = 0;
  CHECK_FALSE(codegen::reach_far(std::span(&t, 1)));

  if (skips_compiling()) return;
  for (const bool offsets64 : {false, true}) {
    const codegen::Source source = source_of("s + bias[q, kv] + of_head[h, kv]", "doc[q] == doc[kv]", offsets64);
    CHECK(has(source, "long long") == offsets64);
    CHECK_NOTHROW(runtime::cuda::compile(source));
  }
}

}  // namespace attune::tests
