// tests/compiler/overlap.test.cpp — tensors that share bytes, against the bytes of all elements
#include "compiler/requirements.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <vector>

using namespace attune;

namespace {

char* const memory = reinterpret_cast<char*>(std::intptr_t{1} << 40);

Tensor at(std::ptrdiff_t byte, DType dtype, std::vector<std::int64_t> shape, const std::vector<std::int64_t>& strides) {
  Tensor out(memory + byte, dtype, shape);
  std::copy(strides.begin(), strides.end(), out.strides.begin());
  return out;
}

std::set<std::intptr_t> bytes_of(const Tensor& t) {
  std::set<std::intptr_t> out;
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  for (std::int64_t i = 0; i < t.size(); ++i) {
    std::int64_t rest = i, place = reinterpret_cast<std::intptr_t>(t.data);
    for (auto d = static_cast<std::size_t>(t.rank); d-- > 0; rest /= t.shape[d])
      place += rest % t.shape[d] * t.strides[d] * size;
    for (std::int64_t byte = 0; byte < size; ++byte) out.insert(place + byte);
  }
  return out;
}

bool share_a_byte(const Tensor& a, const Tensor& b) {
  const std::set<std::intptr_t> of_a = bytes_of(a), of_b = bytes_of(b);
  return std::any_of(of_a.begin(), of_a.end(), [&](std::intptr_t byte) { return of_b.contains(byte); });
}

}  // namespace

TEST_CASE("tensors share elements exactly if they share a byte", "[overlap]") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return std::uniform_int_distribution(0, n - 1)(random); };
  constexpr DType types[] = {DType::u8, DType::f16, DType::f32, DType::f64};
  const auto any = [&] {
    std::vector<std::int64_t> shape, strides;
    for (int rank = below(5); rank > 0; --rank) {
      shape.push_back(below(8) == 0 ? 0 : 1 + below(5));
      strides.push_back(below(2) == 0 ? below(13) - 6 : (below(2) == 0 ? 1 : -1) * below(60));
    }
    return at(below(200) - 100, types[below(4)], shape, strides);
  };
  int shared = 0;
  for (int i = 0; i < 20000; ++i) {
    const Tensor a = any(), b = any();
    const bool want = share_a_byte(a, b);
    shared += want;
    INFO(a.describe() << " at " << a.data << " and " << b.describe() << " at " << b.data);
    REQUIRE(compiler::share_elements(a, b) == want);
    REQUIRE(compiler::share_elements(b, a) == want);
  }
  CHECK(shared > 3000);
  CHECK(shared < 16000);
}

TEST_CASE("parts of one buffer share no element", "[overlap]") {
  // q, k and v of one projection: [batch, position, 3, head, d], and the transposed halves of a matrix.
  const std::vector<std::int64_t> shape{4, 16, 8192, 128}, strides{8192 * 3 * 2048, 128, 3 * 2048, 1};
  const Tensor q = at(0, DType::bf16, shape, strides), k = at(2048 * 2, DType::bf16, shape, strides);
  CHECK_FALSE(compiler::share_elements(q, k));
  CHECK(compiler::share_elements(q, at(2048 * 2 - 2, DType::bf16, shape, strides)));
  CHECK_FALSE(compiler::share_elements(at(0, DType::f32, {1000, 500}, {1, 1000}), at(2000000, DType::f32, {10}, {1})));
}

TEST_CASE("tensors that no memory holds share elements", "[overlap]") {
  const Tensor wide = at(0, DType::f32, {2, 2}, {std::int64_t{1} << 62, -(std::int64_t{1} << 62)});
  CHECK(compiler::share_elements(wide, at(0, DType::f32, {2}, {1})));
}
