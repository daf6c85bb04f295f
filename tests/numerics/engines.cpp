// tests/numerics/engines.cpp — every engine of this build that this machine can run, and the mods they get
#include "tests/numerics/engines.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include <fmt/format.h>

#include "codegen/choose/choose.h"
#include "compiler/lower.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/platform/nvidia/driver.h"
#include "tests/numerics/inputs.h"
#include "tests/numerics/moved.h"

namespace attune::tests {
namespace {

using runtime::cpu::Isa;

// Two threads: enough to show a mistake, and few enough for a machine that runs other tests.
runtime::Means means(Isa isa) { return {.isa = isa, .executor = {.workers = 2}}; }

Engine engine(Isa isa) {
  return {.name = "cpu " + std::string(codegen::name_of(isa)),
          .forward =
              [isa](const Subject& subject, const Forward& call, const compiler::Problem& problem) {
                runtime::cpu::engine.run(runtime::call_of(subject.lowered, call, problem), means(isa));
              },
          .backward =
              [isa](const Subject& subject, const Backward& call, const compiler::Problem& problem) {
                runtime::cpu::engine.run(runtime::call_of(subject.lowered, call, problem), means(isa));
              },
          .per_entry = true};
}

}  // namespace

void on_device(const Subject& subject, const Forward& call, const compiler::Problem& problem,
               const runtime::Means& means) {
  std::deque<Moved> moved;
  const auto there = [&](const Tensor& t) { return t.given() ? moved.emplace_back(t).tensor() : Tensor(); };
  compiler::LoweredMod lowered = subject.lowered;
  for (Tensor& capture : lowered.slots.captures) capture = there(capture);
  const Tensor k = there(call.k);
  // A view of k stays one.
  Tensor v = call.v;
  if (v.data == call.k.data) {
    v.data = k.data;
    v.device = k.device;
  } else {
    v = there(call.v);
  }
  Forward there_call{.q = there(call.q),
                     .k = k,
                     .v = v,
                     .kv_len = there(call.kv_len),
                     .page_table = there(call.page_table),
                     .q_offset = call.q_offset,
                     .q_offsets = there(call.q_offsets),
                     .kv_offset = call.kv_offset,
                     .o_before = there(call.o_before),
                     .lse_before = there(call.lse_before),
                     .fixed_split_size = call.fixed_split_size};
  const std::size_t inputs = moved.size();
  there_call.o = there(call.o);
  there_call.lse = there(call.lse);
  there_call.max = there(call.max);
  runtime::Call checked = runtime::call_of(lowered, there_call, problem);
  checked.exact = subject.exact;
  runtime::cuda::engine.run(checked, means);
  for (std::size_t i = inputs; i < moved.size(); ++i) moved[i].back();
}

void on_device(const Subject& subject, const Backward& call, const compiler::Problem& problem,
               const runtime::Means& means) {
  std::deque<Moved> moved;
  const auto there = [&](const Tensor& t) { return t.given() ? moved.emplace_back(t).tensor() : Tensor(); };
  compiler::LoweredMod lowered = subject.lowered;
  const std::vector<Tensor> host_captures = lowered.slots.captures;
  for (Tensor& capture : lowered.slots.captures) capture = there(capture);
  Backward there_call{.q = there(call.q),
                      .k = there(call.k),
                      .v = there(call.v),
                      .grad_o = there(call.grad_o),
                      .grad_lse = there(call.grad_lse),
                      .o = there(call.o),
                      .lse = there(call.lse),
                      .q_offset = call.q_offset};
  const std::size_t inputs = moved.size();
  there_call.dq = there(call.dq);
  there_call.dk = there(call.dk);
  there_call.dv = there(call.dv);
  for (const Backward::Captured& one : call.captured) {
    const auto slot = std::ranges::find(host_captures, one.of) - host_captures.begin();
    there_call.captured.push_back({lowered.slots.captures[static_cast<std::size_t>(slot)], there(one.into)});
  }
  runtime::Call checked = runtime::call_of(lowered, there_call, problem);
  checked.exact = subject.exact;
  runtime::cuda::engine.run(checked, means);
  for (std::size_t i = inputs; i < moved.size(); ++i) moved[i].back();
}

Subject::Subject(const Attention& attention) : Subject(compiler::trace(attention)) {
  scale = attention.scale;
  exact = attention.exact;
}

Subject::Subject(compiler::BoundMod mod)
    : written(runtime::as_written(std::move(mod))), lowered(compiler::lower(written)) {}

std::string Engine::why_not(const Shape& shape) const {
  const bool takes = mla && shape.mla && shape.d == 576 && shape.dv == 512;
  if (std::max(shape.d, shape.dv) > widest && !takes) return fmt::format("heads wider than {}", widest);
  if (shape.per_entry() && !per_entry) return "entries with settings of their own";
  if (shape.e4m3 && products_of_e4m3) {
    const bool in_boxes = shape.layout == Layout::bhsd || shape.layout == Layout::bshd;
    if (!in_boxes || shape.d % 16 || shape.dv % 16)
      return "q, k and v of e4m3 whose rows are not multiples of 16 bytes";
    if (shape.dtype != DType::bf16 && shape.dtype != DType::f16) return "o of 32 bits beside e4m3";
    if (shape.per_entry()) return "q, k and v of e4m3 with per-entry settings";
  }
  if (fp8_kv == Fp8Kv::all || !(shape.fp8_kv || shape.fixed_split_size)) return {};
  const std::string what = shape.fp8_kv ? "k and v of e4m3" : "a fixed split size";
  const std::int64_t q_len = shape.packed() ? std::ranges::max(shape.q_lens) : shape.q_len;
  if (!codegen::is_decode(q_len, shape.q_heads / shape.kv_heads)) return what + " beside many queries";
  if (shape.dtype != DType::bf16 && shape.dtype != DType::f16) return what + " beside q of 32 bits";
  const bool in_rows = shape.layout == Layout::bhsd || shape.layout == Layout::bshd;
  if (!in_rows || shape.d % 16 || shape.dv % 16) return what + " whose rows are not multiples of 16 bytes";
  return {};
}

Engine cuda_engine() {
  return {.name = "cuda",
          .forward = [](const Subject& subject, const Forward& call,
                        const compiler::Problem& problem) { on_device(subject, call, problem, {}); },
          .backward = [](const Subject& subject, const Backward& call,
                         const compiler::Problem& problem) { on_device(subject, call, problem, {}); },
          .per_entry = true,
          .widest = 256,
          .fp8_kv = Engine::Fp8Kv::decode,
          .products_of_e4m3 = true};
}

const std::vector<Engine>& engines() {
  static const std::vector<Engine> all = [] {
    std::vector<Engine> found;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx})
      if (runtime::cpu::supports(isa)) found.push_back(engine(isa));
    if (runtime::cuda::device_count() > 0) found.push_back(cuda_engine());
    const char* asked = std::getenv("ATTUNE_TEST_ENGINE");
    if (asked) std::erase_if(found, [&](const Engine& e) { return !e.name.starts_with(asked); });
    if (found.empty()) std::printf("[skip] this machine has no engine of %s\n", asked ? asked : "any kind");
    return found;
  }();
  return all;
}

}  // namespace attune::tests
