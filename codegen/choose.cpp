// codegen/choose.cpp — which kernels of a GPU can compute a call, and with which tiles, in the order to try
#include "codegen/choose.h"

#include <algorithm>
#include <array>

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::codegen {
namespace {

struct Sm90 {
  int d, dv, m, n, stages, q_stages, own_o, turns;
};
constexpr std::array sm90{
#define ATTUNE_SM90(...) Sm90{__VA_ARGS__},
#define ATTUNE_SM80(...)
#include "codegen/kernels.def"
#undef ATTUNE_SM80
#undef ATTUNE_SM90
};

struct Sm80 {
  int bytes, d, m, n, stages, warps;
};
constexpr std::array sm80{
#define ATTUNE_SM90(...)
#define ATTUNE_SM80(...) Sm80{__VA_ARGS__},
#include "codegen/kernels.def"
#undef ATTUNE_SM80
#undef ATTUNE_SM90
};

int rounded_up(std::int64_t x, int to) { return static_cast<int>((x + to - 1) / to * to); }

ForwardPlan plan_of(const ForwardSpec& spec, std::string kernel, int m, int n, int stages) {
  const int grain = size_of(spec.dtype) == 4 ? 32 : 16;
  return {.kernel = std::move(kernel),
          .dtype = spec.dtype,
          .out = spec.out,
          .m = m,
          .n = n,
          .d = rounded_up(spec.d, grain),
          .dv = rounded_up(spec.dv, grain),
          .stages = stages,
          .max = spec.max,
          .packed = spec.packed,
          .scale_positive = spec.scale_positive,
          .exact = spec.exact};
}

/// As struct Shared90 of forward_sm90.cuh counts, and what aligns it to 1024 bytes.
int shared_bytes(const ForwardPlan& plan, const Sm90& row) {
  const int chunks = (plan.d + 63) / 64, dv_chunks = (plan.dv + 63) / 64, line = 128;
  const int q = chunks * row.m, k = chunks * row.n, v = dv_chunks * row.n, o = dv_chunks * row.m;
  const int barriers = 16 * (row.q_stages + 2 * row.stages), item = 16 + 16 + 48, again = 256 * (row.m / 64);
  return line * (row.q_stages * q + row.stages * (k + v) + (row.own_o ? o : 0)) + barriers + item + again + 1024;
}

ForwardChoice choice_of(const ForwardSpec& spec, const ForwardFacts& facts, const Sm90& row) {
  ForwardPlan plan = plan_of(spec, "forward_sm90", row.m, row.n, row.stages);
  plan.traits = {{"q_stages", row.q_stages}, {"own_o", row.own_o}, {"turns", row.turns}, {"dynamic", facts.masked}};
  const int bytes = shared_bytes(plan, row);
  return {std::move(plan), 128 * (row.m / 64 + 1), bytes, true, true};
}

/// As struct Shared80 of forward_sm80.cuh counts.
int shared_bytes(const ForwardSpec& spec, const ForwardPlan& plan, const Sm80& row) {
  const int tiles = row.bytes * (row.m * plan.d + row.stages * row.n * (plan.d + plan.dv));
  return std::max(tiles, row.m * plan.dv * static_cast<int>(size_of(spec.out)));
}

ForwardChoice choice_of(const ForwardSpec& spec, const Sm80& row) {
  ForwardPlan plan = plan_of(spec, "forward_sm80", row.m, row.n, row.stages);
  const auto width = static_cast<int>(spec.d), width_v = static_cast<int>(spec.dv);
  plan.traits = {{"warps", row.warps},  {"width", width},      {"width_v", width_v},
                 {"vector", spec.load}, {"store", spec.store}, {"exact", spec.exact}};
  const int bytes = shared_bytes(spec, plan, row);
  return {std::move(plan), 32 * row.warps, bytes, false, false};
}

std::string why_not_sm90(const ForwardSpec& spec, const ForwardFacts& facts) {
  if (spec.arch != 90)
    return fmt::format("it is for compute capability 9.0, and the device has {}.{}", spec.arch / 10, spec.arch % 10);
  if (spec.dtype != DType::bf16 && spec.dtype != DType::f16)
    return fmt::format("its products are of bf16 or f16, and q, k and v hold {}", name_of(spec.dtype));
  if (spec.packed) return "it takes no packed sequences";
  if (spec.out != spec.dtype)
    return fmt::format("it writes o as {}, not as {}", name_of(spec.dtype), name_of(spec.out));
  if (!spec.boxes)
    return "the copy engine takes tensors whose rows are contiguous, whose other strides are positive multiples of 16 "
           "bytes, and none of them empty";
  if (facts.has_prob && !facts.linear_prob) return "the prob mod is no multiple of p: it needs each row's sum first";
  if (spec.d > 256 || spec.dv > 256) return "heads are wider than 256";
  return {};
}

}  // namespace

int trait(const ForwardPlan& plan, std::string_view name) {
  for (const auto& [key, value] : plan.traits)
    if (key == name) return value;
  return 0;
}

ForwardChoices choose(const ForwardSpec& spec, const ForwardFacts& facts) {
  if (spec.arch < 80)
    throw Error("engine-arch", "the device is too old for the CUDA engine", {},
                fmt::format("it has compute capability {}.{}, and kernels need 8.0", spec.arch / 10, spec.arch % 10),
                "compute on another device, or on the host");
  if (size_of(spec.dtype) == 8)
    throw Error("engine-type", "the CUDA engine computes in f32", {}, "q, k and v hold f64",
                "convert them to f32, or choose .target = Target::oracle on the host");
  if (spec.d > 256 || spec.dv > 256)
    throw Error("engine-width", "heads are too wide for the CUDA engine", {},
                fmt::format("D is {} and Dv is {}, and kernels take up to 256", spec.d, spec.dv),
                "split the heads, or compute on the host");
  ForwardChoices out;
  const std::string why = why_not_sm90(spec, facts);
  if (why.empty()) {
    const auto holds = [&](const Sm90& row) { return row.d >= spec.d && row.dv >= spec.dv; };
    const auto narrowest = std::ranges::find_if(sm90, holds);
    for (auto row = narrowest; row != sm90.end() && row->d == narrowest->d && row->dv == narrowest->dv; ++row)
      out.choices.push_back(choice_of(spec, facts, *row));
  } else {
    out.story = "not forward_sm90: " + why;
  }
  const auto bytes = static_cast<int>(size_of(spec.dtype));
  const auto portable = std::ranges::find_if(
      sm80, [&](const Sm80& row) { return row.bytes == bytes && row.d >= std::max(spec.d, spec.dv); });
  out.choices.push_back(choice_of(spec, *portable));
  return out;
}

}  // namespace attune::codegen
