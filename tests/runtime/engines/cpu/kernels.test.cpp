// tests/runtime/engines/cpu/kernels.test.cpp — what the key of a CPU's object code depends on
#include "runtime/engines/cpu/kernels.h"

#include <attune/attune.h>

#include <array>
#include <set>
#include <string>

#include "compiler/lower.h"
#include "tests/catch.h"

using namespace attune;
using codegen::Isa, codegen::Unit;
using runtime::Asked;

namespace {

std::array<float, 64> memory{};

Attention alibi(float by, std::int64_t heads = 16, DType type = DType::f32) {
  const Capture<float> slope(Tensor(memory.data(), type, {heads}), "slope");
  return {.score = [=](Float s, At at) { return s + by * slope[at.head] * f32(at.kv - at.q); }};
}

Attention capped(float at) {
  const Param<float> cap("cap", at);
  return {.score = [=](Float s, At) { return cap * tanh(s / cap); }};
}

std::string forward(const Attention& attention, Isa isa = Isa::avx2, Unit unit = Unit::f32) {
  return runtime::cpu::forward_code(compiler::lower(attention).mod, isa, unit).asked.content;
}

std::string backward(const Attention& attention, const codegen::Wanted& wanted) {
  return runtime::cpu::backward_code(compiler::lower(attention).mod, wanted, Isa::avx2, Unit::f32).asked.content;
}

}  // namespace

TEST_CASE("keys of CPU objects change with what is compiled, and with nothing else", "[cache]") {
  // Not on lengths of captures or values of parameters.
  CHECK(forward(alibi(1)) == forward(alibi(1, 4)));
  CHECK(forward(capped(30)) == forward(capped(50)));
  // But on expressions, types, instruction sets, units, the gradients wanted, and the kernel.
  const std::set<std::string> all{forward(alibi(1)),
                                  forward(alibi(2)),
                                  forward(alibi(1, 16, DType::bf16)),
                                  forward(capped(30)),
                                  forward(alibi(1), Isa::avx512),
                                  forward(alibi(1), Isa::avx512bf16),
                                  forward(alibi(1), Isa::avx512bf16, Unit::bf16),
                                  backward(alibi(1), {false}),
                                  backward(alibi(1), {true}),
                                  runtime::cpu::kit_code(Isa::avx2, Unit::f32, DType::f32).asked.content,
                                  runtime::cpu::kit_code(Isa::avx2, Unit::f32, DType::bf16).asked.content};
  CHECK(all.size() == 11);
}

TEST_CASE("what another compiler made is not taken from the disk", "[cache]") {
  const std::string content = forward(alibi(1));
  const auto by = [&](const std::string& compiler) { return Asked{content, [=] { return compiler; }}.on_disk(); };
  CHECK(by("LLVM 19.1.0") == by("LLVM 19.1.0"));
  CHECK(by("LLVM 19.1.0") != by("LLVM 19.1.1"));
  // Without a compiler, its result cannot be identified.
  CHECK_FALSE(by(""));
  CHECK(Asked{content}.on_disk() == runtime::cache_key(content));
}
