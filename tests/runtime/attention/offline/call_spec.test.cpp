// tests/runtime/attention/offline/call_spec.test.cpp — what a call's captured tensors say about its kernels
#include "runtime/engines/cuda/kernels/keys.h"

#include <attune/attune.h>

#include "compiler/lower.h"
#include "tests/catch.h"

namespace attune::runtime {
namespace {

/// Those of a backward of this score. `half` has rows of 304 elements, `odd` of 303, `table`
/// is f32[2, 30], `wide` an f32 bias of rows of 304.
codegen::Strides strides_of(const std::string& score) {
  std::uintptr_t tensors = 0;
  // Nobody reads them.
  const auto tensor = [&](DType type, std::initializer_list<std::int64_t> shape) {
    return Tensor(reinterpret_cast<void*>(++tensors << 40), type, shape);
  };
  Text text;
  text.capture("half", tensor(DType::bf16, {2, 300, 304}));
  text.capture("odd", tensor(DType::f16, {300, 303}));
  text.capture("table", tensor(DType::f32, {2, 30}));
  text.capture("wide", tensor(DType::f32, {300, 304}));
  const Attention attention{.score = text.score(score)};
  const auto rows = [&] { return tensor(DType::bf16, {1, 2, 300, 64}); };
  const Backward call{
      .q = rows(), .k = rows(), .v = rows(), .grad_o = rows(), .dq = rows(), .dk = rows(), .dv = rows()};
  return call_spec(compiler::lower(attention), call, 90).spec.strides;
}

}  // namespace

TEST_CASE("only the rows of the biases that a backward would copy are asked about", "[call_spec]") {
  const auto is_unaligned = [](const std::string& score) { return strides_of(score).unaligned_captures; };
  CHECK_FALSE(is_unaligned("s + half[h, q, kv]"));
  CHECK_FALSE(is_unaligned("s + half[h, q, kv] + table[h, min(abs(q - kv), 29)]"));
  CHECK_FALSE(is_unaligned("s + table[h, q % 30] * odd[q, kv / 2] + half[h, q, kv]"));
  CHECK_FALSE(is_unaligned("s + wide[q, kv] + table[h, q % 30]"));
  CHECK_FALSE(is_unaligned("s + table[h, q % 30]"));  // nothing to copy
  CHECK(is_unaligned("s + odd[q, kv]"));
  CHECK(is_unaligned("tanh(s + odd[q, kv] * table[h, q % 30])"));
  CHECK(is_unaligned("s + odd[q, kv] + half[h, q, kv]") != is_unaligned("s + half[h, q, kv] + odd[q, kv]"));
  const auto is_second = [](const std::string& score) { return strides_of(score).unaligned_second; };
  CHECK(is_second("s + odd[q, kv] + half[h, q, kv]") != is_second("s + half[h, q, kv] + odd[q, kv]"));
  CHECK_FALSE(is_second("s + half[h, q, kv] * half[h, q + 1, kv]"));
  CHECK_FALSE(is_second("s + wide[q, kv] + odd[q, kv]"));
  CHECK_FALSE(is_second("s + odd[q, kv]"));
}

}  // namespace attune::runtime
