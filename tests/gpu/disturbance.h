// tests/gpu/disturbance.h — runs other work on a device, to show that results do not depend on timing
#pragma once

#include <attune/attune.h>

#include "tests/gpu/device.h"

namespace attune::tests {

/// Drawing a hundred million numbers would take long, so some are repeated.
inline Array<bf16> filled(unsigned seed, std::initializer_list<std::int64_t> shape) {
  auto out = Device::cpu().array<bf16>(shape);
  const auto few = normal<bf16>(seed, {1 << 16});
  const auto some = few.values();
  for (std::size_t i = 0; i < out.values().size(); ++i)
    out.values()[i] = some[(i * 31 + i / some.size()) % some.size()];
  return out;
}

/// A stream whose work disturbs the timing of the test's stream.
class Disturbance {
 public:
  Disturbance() {
    const runtime::cuda::Current current(0);
    runtime::cuda::driver().cuStreamCreate(&stream_, runtime::cuda::cu::stream_non_blocking);
  }
  ~Disturbance() {
    runtime::cuda::driver().cuStreamSynchronize.raw(stream_);
    runtime::cuda::driver().cuStreamDestroy.raw(stream_);
  }
  Disturbance(const Disturbance&) = delete;
  Disturbance& operator=(const Disturbance&) = delete;

  /// Occupies some SMs for a while, different ones each time.
  void run(int nth) const {
    const std::int64_t heads = 1 + nth * 37 % 101, length = 256 + nth * 53 % 7 * 128;
    const auto part = [&](const Array<bf16>& of) {
      return Tensor(of.data(), DType::bf16, {1, heads, length, 64}, {}, Device::cuda());
    };
    plain_.run({.q = part(q_), .k = part(q_), .v = part(q_), .o = part(o_)}, {.stream = stream_});
  }

 private:
  runtime::cuda::cu::Stream stream_ = nullptr;
  Attention plain_;
  Array<bf16> q_ = filled(4, {1, 101, 1024, 64}).on(Device::cuda()),
              o_ = Device::cuda().array<bf16>({1, 101, 1024, 64});
};

}  // namespace attune::tests
