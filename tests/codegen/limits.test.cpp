// tests/codegen/limits.test.cpp — a mask is its limits and the rest, and an expression that might wrap is never a limit
#include "codegen/facts/gpu_parts.h"

#include <algorithm>
#include <array>
#include <attune/tensor.h>
#include <attune/text.h>
#include <cstdint>
#include <limits>
#include <vector>

#include "compiler/lower.h"
#include "ir/eval.h"
#include "tests/catch.h"

using namespace attune;
using namespace attune::codegen;

namespace {

ir::Expr mask(const char* text) {
  static const auto doc = Device::cpu().array<int>({12}, "doc"), far = Device::cpu().array<int>({12}, "far");
  Text t;
  t.capture("doc", doc).capture("far", far);
  return compiler::lower(Attention{.mask = t.mask(text)}).mod.mask;
}

/// "first", "last", both or neither, and "rest" if something is left.
std::string shape(const Limits& limits) {
  std::string out;
  if (limits.first) out += "first ";
  if (limits.last) out += "last ";
  return out + (ir::is_literal(limits.rest, 1) ? "" : "rest");
}

struct Case {
  const char *mask, *shape;
};
constexpr std::array cases{
    Case{"kv <= q", "last "},
    Case{"kv < q", "last "},
    Case{"q >= kv", "last "},
    Case{"q - kv < 3 && kv <= q", "first last "},
    Case{"kv - q <= 2 && q - kv <= 2", "first last "},
    Case{"kv + q < 9", "last "},
    Case{"9 - kv > q", "last "},
    Case{"q < kv + 3", "first "},
    Case{"kv <= q && doc[q] == doc[kv]", "last rest"},
    Case{"kv < doc[q] || kv <= q", "rest"},
    Case{"doc[q] == doc[kv]", "rest"},
    Case{"(q + kv) % 3 == 0", "rest"},
    Case{"kv < 4 && kv <= q && 2 <= kv", "first last "},
    Case{"kv <= far[q]", "last "},
    // far[q] is any Int, so far[q] - 1 and far[q] + kv may wrap.
    Case{"kv < far[q]", "rest"},
    Case{"far[q] < kv", "rest"},
    Case{"kv + far[q] <= q", "rest"},
    Case{"far[q] <= kv", "first "},
    Case{"kv * 2 <= q", "rest"},
    Case{"abs(q - kv) <= 3", "first last "},
    Case{"abs(kv - q) < 3 && doc[q] == doc[kv]", "first last rest"},
    Case{"3 >= abs(q - kv)", "first last "},
    Case{"abs(q - kv) < 1", "first last "},
    Case{"abs(q - kv) < 0", "rest"},  // false
    Case{"abs(q - kv) <= -1", "rest"},
    Case{"abs(q - kv) >= 2", "rest"},
    Case{"abs(q / 4 - kv / 4) <= 1 && abs(q % 4 - kv % 4) <= 1", "rest"},
    // far[q] - kv may be INT_MIN, and is its own abs.
    Case{"abs(far[q] - kv) <= 3", "rest"},
    Case{"random(1) < 0.5f", "rest"},
    Case{"kept(1, 3)", "rest"},
};

}  // namespace

TEST_CASE("a mask is its limits and what they leave", "[limits]") {
  for (const Case& c : cases) {
    INFO(c.mask);
    const ir::Expr e = mask(c.mask);
    const Limits limits = limits_of(e);
    CHECK(shape(limits) == c.shape);
    constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min(), most = -1 - least;
    const std::array<double, 12> doc{0, 0, 0, 3, 3, 5, 5, 5, 5, 9, 9, 11},
        far{least, most, 0, 1, -1, least + 1, most - 1, 5, 6, 7, -8, 12};
    const ir::ReadCapture read = [&](std::uint32_t slot, std::span<const std::int32_t> index) {
      return (slot == 0 ? doc : far)[static_cast<std::size_t>(std::clamp(index[0], 0, 11))];
    };
    const ir::Expr none = ir::integer(0);
    const ir::Program program(
        std::array{e, limits.first ? limits.first : none, limits.last ? limits.last : none, limits.rest});
    ir::Program::Memory memory;
    for (std::int32_t q = 0; q < 12; ++q)
      for (std::int32_t kv = 0; kv < 12; ++kv) {
        ir::Env env;
        env.q = q;
        env.kv = kv;
        env.q_len = env.kv_len = 12;
        env.read = &read;
        program.run(env, memory);
        const bool kept = (!limits.first || program.result(1, memory) <= kv) &&
                          (!limits.last || kv <= program.result(2, memory)) && program.result(3, memory) != 0;
        INFO("q " << q << " kv " << kv);
        CHECK(kept == (program.result(0, memory) != 0));
      }
  }
}

TEST_CASE("limits do not depend on kv", "[limits]") {
  for (const Case& c : cases) {
    const Limits limits = limits_of(mask(c.mask));
    for (const ir::Expr& limit : {limits.first, limits.last})
      if (limit) CHECK_FALSE(ir::uses(limit, ir::Input::KV));
  }
}
