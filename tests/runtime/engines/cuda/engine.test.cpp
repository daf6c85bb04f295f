// tests/runtime/engines/cuda/engine.test.cpp — errors of calls that need a GPU, on a machine without one
#include <attune/attune.h>

#include <array>
#include <functional>

#include "runtime/platform/nvidia/driver.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"

using namespace attune;
using tests::refusal;

namespace {

struct Pretended {
  std::array<float, 64> memory{};
  Tensor tensor(const Device& device) { return Tensor(memory.data(), DType::f32, {1, 1, 4, 4}, {}, device); }
};

}  // namespace

TEST_CASE("without a driver a device is refused, with the reason", "[cuda]") {
  if (runtime::cuda::device_count() > 0) {
    WARN("[skip] this machine has a device");
    return;
  }
  const Error e = refusal([] { Device::cuda().array<float>({4}); });
  CHECK(e.code == "no-device");
  CHECK(e.why == runtime::cuda::find_driver().why);
  std::array<Pretended, 4> four;
  std::array<Tensor, 4> there;
  for (std::size_t i = 0; i < 4; ++i) there[i] = four[i].tensor(Device::cuda());
  CHECK(refusal([&] { Attention{}(there[0], there[1], there[2], there[3]); }).code == "no-device");
  const Forward call{.q = there[0], .k = there[1], .v = there[2], .o = there[3]};
  CHECK(refusal([&] { Attention{}.cover(call); }).code == "no-device");
  CHECK(refusal([&] { Attention{}.cover_bytes(call); }).code == "no-device");
  CHECK(refusal([&] { copy(there[0], four[1].tensor(Device::cpu())); }).code == "no-device");
}

TEST_CASE("a target that does not reach the tensors is refused", "[cuda]") {
  std::array<Pretended, 4> four;
  const auto run = [&](Target target, const Device& device) {
    return refusal([&] {
             Attention{.target = target}(four[0].tensor(device), four[1].tensor(device), four[2].tensor(device),
                                         four[3].tensor(device));
           })
        .code;
  };
  CHECK(run(Target::cuda, Device::cpu()) == "engine-device");
  CHECK(run(Target::cpu, Device::cuda()) == "engine-device");
  CHECK(run(Target::oracle, Device::cuda()) == "engine-device");
}

TEST_CASE("copies are of equal, contiguous tensors", "[cuda]") {
  std::array<float, 12> from{}, to{};
  from[5] = 3;
  const auto tensor = [](auto& memory, std::initializer_list<std::int64_t> shape,
                         std::initializer_list<std::int64_t> strides = {}) {
    return Tensor(memory.data(), DType::f32, shape, strides);
  };
  copy(tensor(from, {3, 4}), tensor(to, {3, 4}));
  CHECK(to == from);
  copy(tensor(from, {2, 0, 3}), tensor(to, {2, 0, 3}));
  CHECK(to == from);
  CHECK(refusal([&] { copy(tensor(from, {4, 3}), tensor(to, {3, 4})); }).code == "copy-shape");
  CHECK(refusal([&] { copy(tensor(from, {2, 3}, {4, 1}), tensor(to, {2, 3})); }).code == "copy-strides");
  CHECK(refusal([&] { copy(Tensor(), tensor(to, {12})); }).code == "tensor-missing");
  CHECK(refusal([&] { copy(Tensor(nullptr, DType::f32, {12}), tensor(to, {12})); }).code == "tensor-null");
}
