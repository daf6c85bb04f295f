// tests/runtime/attention/cpp_page.test.cpp — the code of docs/cpp.md compiles and behaves as documented
#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/refusal.h"

using namespace attune;

namespace {

constexpr int heads = 4, n = 64, d = 16;

Array<float> random_array(std::initializer_list<std::int64_t> shape, const char* name = "") {
  static std::mt19937 dice(23);
  auto out = Device::cpu().array<float>(shape, name);
  for (float& x : out.values()) x = std::normal_distribution<float>()(dice);
  return out;
}

struct Call {
  Array<float> q = random_array({1, heads, n, d}), k = random_array({1, heads, n, d}),
               v = random_array({1, heads, n, d}), o = random_array({1, heads, n, d});
};

std::vector<float> values(const Array<float>& t) { return {t.values().begin(), t.values().end()}; }

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, [](float x, float y) { return std::fabs(x - y) < 1e-4f; });
}

}  // namespace

TEST_CASE("page of C++: tensors and arrays", "[cpp_page]") {
  // [tensor]
  std::vector<float> mine(2 * 64 * 4 * 16);
  const Tensor bshd(mine.data(), DType::f32, {2, 64, 4, 16});  // contiguous: no strides
  const Tensor q = bshd.permuted({0, 2, 1, 3});                // [B, H, S, D], the same memory

  const auto slope = Device::cpu().array<float>({4}, "slope");  // owned, zeroed, freed with its last copy
  std::ranges::fill(slope.values(), 0.5f);
  // [tensor]
  CHECK(q.shape == Tensor::Extents{2, 4, 64, 16});
  CHECK(q.strides == Tensor::Extents{4096, 16, 64, 1});
  CHECK(q.data == mine.data());
  CHECK(slope.tensor().describe() == "f32 [4]");
  const std::vector<float>& only_read = mine;  // as a call does with q, k and v
  CHECK(Tensor(only_read.data(), DType::f32, {2, 64, 4, 16}).data == mine.data());
}

TEST_CASE("page of C++: mods are joined", "[cpp_page]") {
  const Call c;
  const auto& [q, k, v, o] = c;
  const auto slope = random_array({heads}, "slope");
  // [mods]
  const Score distance = [=](Float s, At at) { return s + slope[at.head] * (at.kv - at.q); };
  const Mask near = [](At at) { return at.q - at.kv < 16; };

  const Attention attention{.score = distance | mods::softcap(30), .mask = mods::causal() && near};
  attention(q, k, v, o);
  // [mods]
  const std::vector<float> one = values(o);
  Attention{.score = [=](Float s, At at) { return 30.0f * tanh((s + slope[at.head] * (at.kv - at.q)) / 30.0f); },
            .mask = mods::sliding_window(16),
            .target = Target::oracle}(q, k, v, o);
  CHECK(close(one, values(o)));
  const auto backwards = [](At at) { return at.kv <= at.q; };
  const auto within = [](At at) { return at.q - at.kv < 16; };
  Attention{.score = attention.score, .mask = backwards && within, .target = Target::oracle}(q, k, v, o);
  CHECK(close(one, values(o)));
}

TEST_CASE("page of C++: a call has more than q, k, v and o", "[cpp_page]") {
  const Call c;
  const auto& [q, k, v, o] = c;
  const Attention attention{.mask = mods::causal()};
  const auto lse = random_array({1, heads, n});
  // [call]
  attention.run({.q = q, .k = k, .v = v, .o = o, .lse = lse, .q_offset = 8});
  // [call]
  const std::vector<float> later = values(o);
  Attention{.mask = mods::causal(8), .target = Target::oracle}.run({.q = q, .k = k, .v = v, .o = o});
  CHECK(close(later, values(o)));
}

TEST_CASE("page of C++: numbers and tensors that a call binds", "[cpp_page]") {
  const Call c;
  const auto& [q, k, v, o] = c;
  const auto slope = random_array({heads});
  // [bind]
  const Capture<float> later(Tensor::declared(DType::f32, 1), "slope");
  const Param<float> cap("cap", 30.0f);
  const Attention attention{.score = [=](Float s, At at) { return cap * tanh((s + later[at.head]) / cap); }};

  const std::vector<Tensor> tensors{slope};  // one for each of attention.captures()
  const std::vector<double> numbers{20.0};   // one for each of attention.params()
  attention.run({.q = q, .k = k, .v = v, .o = o, .captures = tensors, .params = numbers});
  // [bind]
  REQUIRE(attention.captures() == std::vector<Slot>{{"slope", DType::f32, 1}});
  REQUIRE(attention.params() == std::vector<Slot>{{"cap", DType::f32, 0}});
  const std::vector<float> bound = values(o);
  Attention{.score = [=](Float s, At at) { return 20.0f * tanh((s + slope[at.head]) / 20.0f); },
            .target = Target::oracle}(q, k, v, o);
  CHECK(close(bound, values(o)));
}

TEST_CASE("page of C++: threads, memory and progress", "[cpp_page]") {
  const Call c;
  const auto& [q, k, v, o] = c;
  const Attention attention{.mask = mods::causal()};
  std::vector<double> told;
  // [resources]
  const Forward call{.q = q, .k = k, .v = v, .o = o};
  const Executor two{.workers = 2};  // of attune's own threads
  const auto bytes = static_cast<std::int64_t>(attention.workspace(call, {.executor = two}));
  const auto memory = Device::cpu().array<std::uint8_t>({bytes});  // or memory of yours, aligned to 64
  attention.run(call, {.executor = two,
                       .progress = [&](double share) { told.push_back(share); },
                       .workspace = std::as_writable_bytes(memory.values())});
  // [resources]
  REQUIRE(!told.empty());
  CHECK(told.back() == 1);
  const std::vector<float> mine = values(o);
  attention.run(call);
  CHECK(mine == values(o));
}

TEST_CASE("page of C++: mistakes", "[cpp_page]") {
  const Call c;
  const auto& [q, k, v, o] = c;
  std::string code, said;
  // [error]
  const auto slope = Device::cpu().array<float>({2}, "slope");
  try {
    Attention{.score = mods::alibi(slope)}(q, k, v, o);  // 4 heads
  } catch (const Error& e) {
    code = e.code;    // "capture-range"
    said = e.what();  // the whole message: what is wrong, where, why, and what to do
  }
  // [error]
  CHECK(code == "capture-range");
  CHECK(said.find("slope holds 2 values") != std::string::npos);
}
