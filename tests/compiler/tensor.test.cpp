// tests/compiler/tensor.test.cpp — shapes, strides, views and descriptions of tensors
#include <attune/error.h>
#include <attune/tensor.h>

#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune;
using tests::golden_error, tests::refusal;

namespace {}  // namespace

TEST_CASE("a tensor is contiguous unless strides are given", "[tensor]") {
  const Tensor t(nullptr, DType::f32, {2, 3, 4});
  CHECK(t.rank == 3);
  CHECK(t.size() == 24);
  CHECK(t.strides == Tensor::Extents{12, 4, 1, 0});
  CHECK(Tensor(nullptr, DType::f32, {2, 3}, {0, -1}).strides == Tensor::Extents{0, -1, 0, 0});
  CHECK(Tensor(nullptr, DType::f32, std::span<const std::int64_t>()).size() == 1);
  CHECK(Tensor().size() == 0);
  CHECK_FALSE(Tensor().given());
}

TEST_CASE("a permuted tensor is a view of the same memory", "[tensor]") {
  const Tensor t(nullptr, DType::f16, {2, 3, 4, 5});
  const Tensor p = t.permuted({0, 2, 1, 3});
  CHECK(p.shape == Tensor::Extents{2, 4, 3, 5});
  CHECK(p.strides == Tensor::Extents{60, 5, 20, 1});
  CHECK(p.describe() == "f16 [2, 4, 3, 5]");
  CHECK(p.permuted({0, 2, 1, 3}) == t);
}

TEST_CASE("what cannot be a tensor is refused", "[tensor]") {
  const std::int64_t huge = std::int64_t{1} << 40;
  golden_error("bad-rank", refusal([] { Tensor(nullptr, DType::f32, {1, 2, 3, 4, 5}); }).what());
  golden_error("bad-extent.negative", refusal([] { Tensor(nullptr, DType::f32, {2, -3}); }).what());
  golden_error("bad-extent.huge", refusal([&] { Tensor(nullptr, DType::f32, {huge, huge}); }).what());
  golden_error("bad-strides", refusal([] { Tensor(nullptr, DType::f32, {2, 3}, {1}); }).what());
  golden_error("bad-permutation.count", refusal([] { Tensor(nullptr, DType::f32, {2, 3}).permuted({0}); }).what());
  golden_error("bad-permutation.twice", refusal([] { Tensor(nullptr, DType::f32, {2, 3}).permuted({1, 1}); }).what());
  golden_error("bad-permutation.range", refusal([] { Tensor(nullptr, DType::f32, {2, 3}).permuted({0, 2}); }).what());
  golden_error("capture-type", refusal([] { Capture<int>(Tensor(nullptr, DType::f32, {2}), "slope", Line{}); }).what());
  golden_error("capture-missing", refusal([] { Capture<float>(Tensor(), "slope", Line{}); }).what());
}
