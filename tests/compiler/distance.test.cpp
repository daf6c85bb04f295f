// tests/compiler/distance.test.cpp — which expressions depend only on q - kv, checked by evaluation
#include "compiler/distance.h"

#include "tests/catch.h"
#include "tests/compiler/language.h"

using namespace attune;
using namespace attune::compiler;
using namespace attune::tests;

TEST_CASE("what q and kv enter as a distance alone hangs on it", "[distance]") {
  const Setting here;
  for (const char* text : {"q - kv",
                           "kv - q + width",
                           "clamp(q - kv, -8, 8) + 8",
                           "abs(kv - q) / 4",
                           "(q + 3) - (kv - 1)",
                           "-q + kv + h",
                           "2 * q - kv * 2",
                           "q + kv_len - q_len - kv",
                           "f32(q - kv) * slope[h]",
                           "table[q - kv + b]",
                           "min(q, kv) - q",
                           "max(q, kv) - min(q, kv)",
                           "q < kv",
                           "q >= kv",
                           "q + 1 == kv",
                           "(q < kv ? q : kv) - kv",
                           "bias[h, (q - kv) >> 1]",
                           "sum(n, 4, table[q - kv + n])",
                           "h + q_len",
                           "3",
                           "exp(cap) * f32(q - kv != 0)"}) {
    INFO(text);
    const ir::Expr e = expr(text);
    CHECK(by_distance(e));
    ir::Env further = here.env;
    further.q += 7;
    further.kv += 7;
    CHECK(identical(ir::eval(e, further, ir::Precision::f32), here(e, ir::Precision::f32)));
  }
}

TEST_CASE("what hangs on more than the distance, or does not show it, is told apart", "[distance]") {
  for (const char* text : {"q",
                           "kv",
                           "q + kv",
                           "q * kv",
                           "2 * q - kv",
                           "q * width - kv * width",
                           "q / 2 - kv / 2",
                           "table[q]",
                           "table[kv]",
                           "f32(q) - f32(kv)",
                           "s",
                           "p",
                           "s * f32(q - kv)",
                           "random(3)",
                           "min(q, kv)",
                           "q < 3",
                           "q + 1 < kv",
                           "abs(q) - kv",
                           "(q < kv ? q : 0)",
                           "doc[q] - doc[kv]",
                           "sum(n, 4, table[q + n])"}) {
    INFO(text);
    CHECK_FALSE(by_distance(expr(text)));
  }
}
