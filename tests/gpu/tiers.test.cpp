// tests/gpu/tiers.test.cpp — both tiers of a forward give the same bits
#include <attune/attune.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/attention/tools.h"
#include "runtime/machine/background.h"
#include "runtime/platform/platform.h"
#include "tests/gpu/device.h"

using namespace attune;
using tests::skipped;

namespace {

bool notes(const Attention& attention, const Forward& call, const char* what) {
  const runtime::KernelStory story = runtime::stories(attention, call).front();
  return std::ranges::any_of(story.notes, [&](const std::string& one) { return one.find(what) != std::string::npos; });
}

template <class T>
std::string bytes_of(const Array<T>& array) {
  const auto here = array.on(Device::cpu());
  return {reinterpret_cast<const char*>(here.data()), here.values().size() * sizeof(T)};
}

}  // namespace

TEST_CASE("a spliced kernel that answers first and the whole one that takes over give the same bits", "[gpu]") {
  if (skipped()) return;
  const Device gpu = Device::cuda();
  if (!runtime::cuda::platform().splices || runtime::cuda::facts(0).arch() != 90) {
    WARN("[skip] only Hopper's forwards have two tiers");
    return;
  }
  const auto q = tests::normal<bf16>(1, {2, 4, 700, 128}).on(gpu), k = tests::normal<bf16>(2, {2, 2, 900, 128}).on(gpu),
             v = tests::normal<bf16>(3, {2, 2, 900, 128}).on(gpu);
  const auto slope = tests::normal<float>(4, {4}).on(gpu), bias = tests::normal<float>(5, {900}).on(gpu),
             table = tests::normal<float>(6, {4, 1700}).on(gpu);
  const auto first = gpu.array<bf16>({2, 4, 700, 128}), last = gpu.array<bf16>({2, 4, 700, 128});
  const auto first_lse = gpu.array<float>({2, 4, 700}), last_lse = gpu.array<float>({2, 4, 700});
  const Forward call{.q = q, .k = k, .v = v, .o = first, .lse = first_lse},
      again{.q = q, .k = k, .v = v, .o = last, .lse = last_lse};
  // By a number, for two mods of each form: the first one leaves the skeleton.
  const std::vector<std::pair<const char*, std::function<Score(float)>>> scores{
      {"a slope",
       [&](float by) { return Score([=](Float s, At at) { return s + by * slope[at.head] * f32(at.kv - at.q); }); }},
      {"a bias of keys", [&](float by) { return Score([=](Float s, At at) { return s + by * bias[at.kv]; }); }},
      {"a table",
       [&](float by) { return Score([=](Float s, At at) { return s + by * table(at.head, at.q - at.kv + 900); }); }},
      {"a scale and a slope", [&](float by) {
         return Score([=](Float s, At at) { return s * (1.0f + by * 0.125f * f32(at.head)) + 0.25f * f32(at.kv); });
       }}};
  for (const auto& [name, score] : scores)
    for (const bool causal : {true, false}) {
      CAPTURE(name, causal);
      const Mask mask = causal ? Mask(mods::causal()) : Mask();
      Attention{.score = score(0.5f), .mask = mask}.run(call);
      runtime::wait_for_spare_time();
      const Attention attention{.score = score(0.375f), .mask = mask};
      attention.run(call);
      const bool has_tiers = notes(attention, call, "the first of two tiers");
      wait();
      attention.run(again);
      CHECK((!has_tiers || notes(attention, call, "the last of two tiers")));
      CHECK(bytes_of(first) == bytes_of(last));
      CHECK(bytes_of(first_lse) == bytes_of(last_lse));
    }
}
