// tests/codegen/decode.test.cpp — decode: few queries against unpacked keys and values, checked against plain loops
#include <cmath>
#include <limits>
#include <random>

#include "tests/codegen/exact.h"

using namespace attune;
using namespace attune::codegen;
using namespace attune::tests;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("dots of few queries with keys as they lie", "[kit][decode]") {
  std::mt19937 random(7);
  const auto check = [&](const LoadedKit& kit, bool pairs, std::initializer_list<std::int64_t> widths) {
    for (const std::int64_t rows : {0, 1, 2, 3, 7, 8, 13})
      for (const std::int64_t count : {0, 1, 5, 16, 17, 35})
        for (const std::int64_t d : widths) {
          INFO(kit.name() << (pairs ? ", pairs" : "") << ", " << rows << " rows, " << count << " keys, d " << d);
          const std::int64_t q_row = d + 1, k_row = d + 2, s_row = count + 3;
          const Elements q(pairs ? DType::bf16 : DType::f32, rows > 0 ? (rows - 1) * q_row + d : 0);
          const Elements k(kit.type, count > 0 ? (count - 1) * k_row + d : 0);
          fill_small(q, random);
          fill_small(k, random);
          const Guarded<float> s(static_cast<std::size_t>(rows > 0 ? (rows - 1) * s_row + count : 0));
          std::vector<float> want = copy(s);
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t j = 0; j < count; ++j) {
              double sum = 0;
              for (std::int64_t i = 0; i < d; ++i) sum += q.get(r * q_row + i) * k.get(j * k_row + i);
              want[static_cast<std::size_t>(r * s_row + j)] = static_cast<float>(pairs ? 0.5 * sum : sum);
            }
          const Dots dots{.q = q.data(),
                          .q_row = q_row,
                          .rows = rows,
                          .k = k.data(),
                          .k_row = k_row,
                          .count = count,
                          .d = d,
                          .s = s.data(),
                          .s_row = s_row,
                          .scale = pairs ? 0.5f : 1.0f,
                          .next = pairs ? k.data() : nullptr};
          kit.find<DotsFn>(pairs ? kit_symbol::dots_of_pairs : kit_symbol::dots)(&dots);
          if (!want.empty()) check_all(s, want);
        }
  };
  for (const LoadedKit& kit : kits()) {
    check(kit, false, {0, 1, 7, 16, 40, 65});
    const bool has_pairs = kit.type == DType::bf16 && has_bf16(kit.isa);
    CHECK((kit.find<DotsFn>(kit_symbol::dots_of_pairs) != nullptr) == has_pairs);
    if (has_pairs) check(kit, true, {0, dots_columns, 4 * dots_columns});
  }
}

TEST_CASE("infinite values reach the sums where no weight is 0", "[kit][decode]") {
  for (const LoadedKit& kit : kits()) {
    INFO(kit.name());
    constexpr std::int64_t rows = 5, count = 24, dv = 40;
    const Elements p(DType::f32, rows * count), v(kit.type, count * dv);
    const Guarded<float> o(rows * dv), keep(rows);
    for (std::int64_t i = 0; i < rows * count; ++i) p.set(i, i % 2 ? 0.5 : 0.25);
    for (std::int64_t i = 0; i < count * dv; ++i) v.set(i, 1);
    const bool has_infinity = kit.type != DType::e4m3;
    v.set(9 * dv + 5, has_infinity ? infinity : not_a_number);
    for (float& x : o) x = 2;
    for (float& x : keep) x = 0.5f;
    std::vector<float> want(rows * dv, 1 + count * 0.375f);
    for (std::int64_t r = 0; r < rows; ++r)
      want[static_cast<std::size_t>(r * dv + 5)] = has_infinity ? infinity : not_a_number;
    const Weigh weigh{.p = static_cast<const float*>(p.data()),
                      .p_row = count,
                      .rows = rows,
                      .v = v.data(),
                      .v_row = dv,
                      .count = count,
                      .dv = dv,
                      .o = o.data(),
                      .o_row = dv,
                      .keep = keep.data(),
                      .next = v.data()};
    kit.find<WeighFn>(kit_symbol::weigh)(&weigh);
    check_all(o, want);
  }
}

TEST_CASE("values are weighed as they lie, and what weighs nothing adds nothing", "[kit][decode]") {
  std::mt19937 random(8);
  for (const LoadedKit& kit : kits())
    for (const bool wild : {false, true})
      for (const std::int64_t rows : {0, 1, 2, 9})
        for (const std::int64_t count : {0, 1, 7, 8, 21})
          for (const std::int64_t dv : {0, 1, 16, 23, 65}) {
            INFO(kit.name() << ", " << rows << " rows, " << count << " values, dv " << dv << ", wild " << wild);
            const std::int64_t p_row = count + 1, v_row = dv + 2, o_row = dv + 3;
            const Elements p(DType::f32, rows > 0 ? (rows - 1) * p_row + count : 0);
            const Elements v(kit.type, count > 0 ? (count - 1) * v_row + dv : 0);
            const Guarded<float> o(static_cast<std::size_t>(rows > 0 ? (rows - 1) * o_row + dv : 0));
            const Guarded<float> keep(static_cast<std::size_t>(rows));
            fill_small(p, random);
            fill_small(v, random);
            for (std::int64_t j = 0; wild && j < count; j += 3) {
              for (std::int64_t r = 0; r < rows; ++r) p.set(r * p_row + j, r % 2 ? -0.0 : 0.0);
              for (std::int64_t c = j % 2; c < dv; c += 2) v.set(j * v_row + c, c % 3 ? not_a_number : infinity);
            }
            for (float& x : o) x = static_cast<float>(small(random));
            for (float& x : keep) x = static_cast<float>(small(random));
            std::vector<float> want = copy(o);
            for (std::int64_t r = 0; r < rows; ++r)
              for (std::int64_t c = 0; c < dv; ++c) {
                float& out = want[static_cast<std::size_t>(r * o_row + c)];
                double sum = out * keep[r];
                for (std::int64_t j = 0; j < count; ++j)
                  if (p.get(r * p_row + j) != 0) sum += p.get(r * p_row + j) * v.get(j * v_row + c);
                out = static_cast<float>(sum);
              }
            const Weigh weigh{.p = static_cast<const float*>(p.data()),
                              .p_row = p_row,
                              .rows = rows,
                              .v = v.data(),
                              .v_row = v_row,
                              .count = count,
                              .dv = dv,
                              .o = o.data(),
                              .o_row = o_row,
                              .keep = keep.data(),
                              .next = wild ? v.data() : nullptr};
            kit.find<WeighFn>(kit_symbol::weigh)(&weigh);
            if (!want.empty()) check_all(o, want);
          }
}
