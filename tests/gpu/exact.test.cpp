// tests/gpu/exact.test.cpp — errors relative to the oracle, for kernels that must be exact and kernels that need not
#include <attune/attune.h>

#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "codegen/choose/kind.h"
#include "runtime/attention/tools.h"
#include "tests/gpu/device.h"
#include "tests/numerics/agree.h"

using namespace attune;
using tests::skipped;

namespace {

/// A call with a few hundred normally distributed keys.
template <class T>
struct Call {
  Array<T> q, k, v;

  Call()
      : q(tests::normal<T>(1, {2, 4, 200, 64})), k(tests::normal<T>(2, {2, 2, 300, 64})),
        v(tests::normal<T>(3, {2, 2, 300, 64})) {}
};

/// Errors relative to the oracle, over all elements.
struct Errors {
  double o = 0, lse = 0;
};

template <class T>
double error(const Array<T>& got, const Array<double>& wanted) {
  const auto here = got.on(Device::cpu());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < wanted.values().size(); ++i) {
    const double x = wanted.values()[i], by = static_cast<double>(static_cast<float>(here.values()[i])) - x;
    difference += by * by;
    size += x * x;
  }
  return std::sqrt(difference / size);
}

template <class T>
Errors errors(Attention attention, std::optional<bool> exact, const codegen::Preference* preference = nullptr) {
  const Call<T> call;
  const Device host = Device::cpu(), gpu = Device::cuda();
  const auto o = gpu.array<T>({2, 4, 200, 64});
  const auto lse = gpu.array<float>({2, 4, 200});
  const auto q = call.q.on(gpu), k = call.k.on(gpu), v = call.v.on(gpu);
  attention.exact = exact;
  const Forward call_there{.q = q, .k = k, .v = v, .o = o, .lse = lse};
  runtime::run(attention, call_there, preference);
  const auto true_o = host.array<double>({2, 4, 200, 64}), true_lse = host.array<double>({2, 4, 200});
  attention.target = Target::oracle;
  attention.run({.q = call.q, .k = call.k, .v = call.v, .o = true_o, .lse = true_lse});
  return {error(o, true_o), error(lse, true_lse)};
}

}  // namespace

// One product of TF32 rounds each of its operands by at most 2^-11. Rounding q and k moves a score by that much of
// sqrt(sum (q k)^2) scale, which is about 1 here, and its probability by as much; then p and v are rounded. Four
// independent roundings amount to at most 2 * 2^-11 of o; the first two, which alone affect lse, to at most as much of
// lse. A third product leaves 2^-21 of each, and f32 sums.
TEST_CASE("of f32 one product of TF32 is as near as TF32, and three as f32", "[gpu]") {
  if (skipped()) return;
  const auto near = [](Float s, At at) { return s - 0.125f * f32(at.q - at.kv); };
  for (const auto& [name, attention] :
       {std::pair{"plain", Attention{}},
        {"causal", Attention{.score = near, .mask = mods::causal()}},
        {"capped", Attention{.score = mods::softcap(20), .mask = mods::sliding_window(100)}}}) {
    const Errors usual = errors<float>(attention, {}), exact = errors<float>(attention, true),
                 fast = errors<float>(attention, false);
    INFO(name << ": o " << exact.o << " and " << fast.o << ", lse " << exact.lse << " and " << fast.lse);
    CHECK(usual.o == exact.o);
    CHECK(usual.lse == exact.lse);
    CHECK(exact.o < 0x1p-18);
    CHECK(exact.lse < 0x1p-18);
    CHECK(fast.o <= 0x1p-10);
    CHECK(fast.lse <= 0x1p-10);
    // And it must really be the TF32 kernel.
    CHECK(fast.o > 0x1p-14);
    for (const bool asked : {false, true}) {
      Attention one = attention;
      one.exact = asked;
      const tests::Verdict verdict = tests::compare(tests::Subject(one), tests::inputs({.q_len = 150, .kv_len = 170}),
                                                    std::array{tests::device_engine()}, {.backward = false});
      if (asked) CHECK(verdict.wrong == "");
      CHECK(verdict.engine_error <= 0x1p-10);
    }
  }
}

TEST_CASE("of f32 each tile of Hopper's kernel is as near", "[gpu][small]") {
  if (skipped()) return;
  for (const bool exact : {true, false})
    for (const char* text :
         {"forward_f32_sm90:n=32,stages=2", "forward_f32_sm90:n=64,stages=1,issue_order=0",
          "forward_f32_sm90:m=192,n=32,issue_order=2", "forward_f32_sm90:m=128,n=128,q_stages=1,stages=2",
          "forward_f32_sm90:m=128,n=96,q_stages=1,stages=2,dynamic=0"}) {
      const codegen::Preference preference{codegen::variant(text), true, ""};
      INFO(text << (exact ? ", three products" : ", one product"));
      Errors of;
      try {
        of = errors<float>({.mask = mods::causal()}, exact, &preference);
      } catch (const Error& e) {
        REQUIRE(e.code == "bad-kernel");  // another device, or a tile of the other kind
        continue;
      }
      CHECK(of.o < (exact ? 0x1p-18 : 0x1p-10));
      CHECK(of.lse < (exact ? 0x1p-18 : 0x1p-10));
    }
}

TEST_CASE("of 16 bits exact functions are at least as near as the hardware's", "[gpu]") {
  if (skipped()) return;
  const Attention capped{.score = mods::softcap(5), .mask = mods::causal()};
  const auto check = [](const char* type, const Errors& usual, const Errors& exact, const Errors& fast) {
    INFO(type << ": o " << exact.o << " and " << fast.o << ", lse " << exact.lse << " and " << fast.lse);
    CHECK(usual.o == fast.o);
    CHECK(usual.lse == fast.lse);
    // In o, the roundings of probabilities and results dominate, and their sum is random.
    CHECK(exact.o <= 1.02 * fast.o);
    CHECK(exact.lse < fast.lse);
    CHECK(exact.lse < 0x1p-18);
  };
  check("bf16", errors<bf16>(capped, {}), errors<bf16>(capped, true), errors<bf16>(capped, false));
  check("f16", errors<f16>(capped, {}), errors<f16>(capped, true), errors<f16>(capped, false));
}
