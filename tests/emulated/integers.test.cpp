// tests/emulated/integers.test.cpp — lengths, positions and starts of i32 and of i64 on the host, where kernels are
// emulated and on the CPU
#include <attune/attune.h>

#include "tests/emulated/gpu.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/mla.h"
#include "tests/refusal.h"

namespace attune::tests {
namespace {

/// As Target::emulated: the tensors stay on the host.
Engine here(int arch) {
  const auto run = [arch](const Subject& subject, const auto& call, const compiler::Problem& problem) {
    const runtime::emulated::Here on({.arch = arch});
    runtime::cuda::engine.run(runtime::call_of(subject.lowered, call, problem), {});
  };
  return {.name = fmt::format("sm_{} here", arch),
          .forward = run,
          .backward = run,
          .per_entry = true,
          .widest = 256,
          .mla = arch == 90};
}
/// Both emulated GPUs, and the CPU.
std::vector<Engine> all_engines() {
  std::vector<Engine> out{here(80), here(90)};
  std::ranges::copy_if(engines(), std::back_inserter(out),
                       [](const Engine& one) { return one.name.starts_with("cpu"); });
  return out;
}

/// The same numbers as i64.
Placed wide(const Placed& narrow, Layout layout) {
  if (!narrow.tensor.given()) return narrow;
  Placed out = place(DType::i64, {narrow.tensor.shape[0]}, layout);
  for (std::int64_t i = 0; i < narrow.tensor.shape[0]; ++i)
    static_cast<std::int64_t*>(out.tensor.data)[i * out.tensor.strides[0]] = static_cast<const std::int32_t*>(
        narrow.tensor.data)[i * narrow.tensor.strides[0]];
  return out;
}

Shape of(DType dtype, std::int64_t q_len) {
  return {.batch = 3, .q_len = q_len, .kv_len = 150, .d = 64, .dv = 64, .dtype = dtype};
}
Shape packed(std::vector<std::int64_t> kv_lens) {
  Shape out = of(DType::bf16, 0);
  out.q_lens = {3, 0, 70};
  out.kv_lens = std::move(kv_lens);
  return out;
}
/// Entries with lengths and positions of their own.
Shape per_entry(Shape shape) {
  shape.used = {150, 7, 101};
  shape.q_offset = 0;
  shape.q_offsets = {90, 0, 40};
  return shape;
}
Shape paged(Shape shape) {
  shape.page = 16;
  return shape;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{
      per_entry(of(DType::bf16, 1)),         per_entry(of(DType::f32, 5)), paged(per_entry(of(DType::f16, 2))),
      paged(per_entry(of(DType::bf16, 60))), per_entry(packed({})),        paged(per_entry(packed({}))),
      per_entry(mla_shape(16, 1, 150)),      packed({31, 20, 150}),
  };
  return all;
}

void check_as(const char* name, const std::function<Placed(const Placed&)>& changed) {
  if (skipped_without_compiler()) return;
  const std::vector<Engine> all = all_engines();
  std::size_t nth = 0;
  for (const Shape& shape : shapes()) {
    if (!in_turn(nth++, 2)) continue;
    Inputs in = inputs(shape);
    for (Placed* one : {&in.cu_seqlens_q, &in.cu_seqlens_kv, &in.kv_len, &in.q_offsets}) *one = changed(*one);
    INFO(name << " " << shape.describe());
    CHECK(compare(Subject(Attention{.mask = mods::causal()}), in, all, {.backward = !shape.per_entry()}).wrong == "");
  }
}

}  // namespace

TEST_CASE("lengths, positions and starts on the host may be i32 or i64 for emulated GPUs and the CPU", "[emulated]") {
  check_as("i32", [](const Placed& given) { return given; });
  std::size_t nth = 0;
  for (const Layout layout : {Layout::bhsd, Layout::spread, Layout::reversed})
    if (in_turn(nth++, 9)) check_as("i64", [layout](const Placed& given) { return wide(given, layout); });
}

TEST_CASE("page numbers of i64 are refused by emulated GPUs, the CPU and the oracle", "[emulated]") {
  const Inputs in = inputs(paged(of(DType::f32, 1)));
  Forward call = in.forward();
  const Placed o = place(DType::f32, in.shape_of_o()),
               table = place(DType::i64, {in.page_table.tensor.shape[0], in.page_table.tensor.shape[1]});
  call.o = o.tensor;
  call.page_table = table.tensor;
  for (const Target target : {Target::cpu, Target::oracle, Target::emulated("sm_80"), Target::emulated("sm_90a")})
    CHECK(refusal([&] { Attention{.target = target}.run(call); }).code == "page-table");
}

}  // namespace attune::tests
