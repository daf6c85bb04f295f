// tests/runtime/ranks/carry/pack.test.cpp — chunks of any strides, to bytes and back
#include "runtime/ranks/schedule/chunk.h"

#include <array>
#include <numeric>
#include <vector>

#include "tests/catch.h"

using namespace attune;
using compiler::Layout;
using runtime::ranks::Chunk, runtime::ranks::Rect, runtime::ranks::Rows;

namespace {

/// What is packed of a tensor whose elements are their own numbers.
std::vector<float> packed(const Rows& of, const Rect& at) {
  const Chunk chunk{0, of, at};
  std::vector<float> out(chunk.bytes() / sizeof(float));
  runtime::ranks::pack(chunk, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

}  // namespace

TEST_CASE("chunks are packed by entries, heads, rows and columns, whatever the strides", "[ranks]") {
  std::vector<float> memory(2 * 3 * 4 * 2);
  std::iota(memory.begin(), memory.end(), 0.0f);
  const Rect rect{.entry = 1, .head = 1, .row = 2, .rows = 2, .heads = 2};
  // [2, 3, 4, 2], as heads of rows and as rows of heads.
  const Tensor by_heads(memory.data(), DType::f32, {2, 3, 4, 2}),
      by_rows(memory.data(), DType::f32, {2, 3, 4, 2}, {24, 2, 6, 1});
  CHECK(packed({by_heads}, rect) == std::vector<float>{36, 37, 38, 39, 44, 45, 46, 47});
  CHECK(packed({by_rows}, rect) == std::vector<float>{38, 39, 44, 45, 40, 41, 46, 47});
  // Columns first.
  const Tensor turned(memory.data(), DType::f32, {2, 3, 4, 2}, {24, 8, 1, 4});
  CHECK(packed({turned}, {.row = 1, .rows = 2}) == std::vector<float>{1, 5, 2, 6});
  // Packed sequences [T, H, D], and numbers [H, T].
  const Tensor tokens(memory.data(), DType::f32, {4, 3, 4}), numbers(memory.data(), DType::f32, {3, 16});
  CHECK(packed({tokens, Layout::packed}, {.head = 2, .row = 1, .rows = 1}) == std::vector<float>{20, 21, 22, 23});
  CHECK(packed({numbers, Layout::packed, true}, {.head = 1, .row = 14, .rows = 2, .heads = 2}) ==
        std::vector<float>{30, 31, 46, 47});

  for (const Tensor& t : {by_heads, by_rows, turned}) {
    const std::vector<float> before = memory, bytes = packed({t}, rect);
    const std::vector<float> zeros(bytes.size());
    runtime::ranks::unpack(reinterpret_cast<const std::byte*>(zeros.data()), {0, {t}, rect});
    CHECK(packed({t}, rect) == zeros);
    runtime::ranks::unpack(reinterpret_cast<const std::byte*>(bytes.data()), {0, {t}, rect});
    CHECK(memory == before);
  }
}

TEST_CASE("a chunk whose bytes lie in order is sent from where it is", "[ranks]") {
  std::vector<float> memory(2 * 3 * 4 * 2);
  const Tensor by_heads(memory.data(), DType::f32, {2, 3, 4, 2}),
      by_rows(memory.data(), DType::f32, {2, 3, 4, 2}, {24, 2, 6, 1});
  const auto place = [&](const Tensor& t, const Rect& at) -> std::int64_t {
    const std::byte* const there = runtime::ranks::in_order({0, {t}, at});
    return there ? (there - reinterpret_cast<std::byte*>(memory.data())) / std::int64_t{sizeof(float)} : -1;
  };
  CHECK(place(by_heads, {.entry = 1, .head = 1, .row = 2, .rows = 2}) == 36);
  CHECK(place(by_heads, {.row = 2, .rows = 2, .heads = 2}) == -1);
  CHECK(place(by_heads, {.entry = 1, .rows = 4, .heads = 3}) == 24);
  CHECK(place(by_heads, {.rows = 4, .heads = 3, .entries = 2}) == 0);
  CHECK(place(by_heads, {.rows = 4, .heads = 2, .entries = 2}) == -1);
  CHECK(place(by_rows, {.rows = 2}) == -1);
  CHECK(place(by_rows, {.row = 3, .rows = 1, .heads = 3}) == 18);
}
