// tests/emulated/refusals.test.cpp — Target::emulated: what it computes, and what it refuses in which words
#include <attune/attune.h>

#include <cmath>
#include <cstdlib>
#include <regex>
#include <thread>

#include "runtime/engines/cuda/driver.h"
#include "runtime/engines/emulated/fiber.h"
#include "runtime/engines/emulated/files.h"
#include "tests/child.h"
#include "tests/emulated/gpu.h"
#include "tests/golden.h"
#include "tests/refusal.h"

namespace attune::tests {
namespace {

constexpr Line somewhere{"mine.cpp", 12};

/// Tensors of a small call on the host.
struct Small {
  static constexpr std::int64_t rows = 70, width = 64;
  Array<float> q = made(1), k = made(2), v = made(3), o = Device::cpu().array<float>({1, 2, rows, width});

  static Array<float> made(int by) {
    auto out = Device::cpu().array<float>({1, 2, rows, width});
    for (int i = 0; float& x : out.values()) x = static_cast<float>((i++ * (2 * by + 1)) % 17) / 8 - 1;
    return out;
  }
  void run(Target target) {
    Attention{.mask = [](At at) { return at.kv <= at.q; }, .target = target}.run({.q = q, .k = k, .v = v, .o = o});
  }
};

float apart(const Array<float>& a, const Array<float>& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.values().size(); ++i) most = std::max(most, std::abs(a.values()[i] - b.values()[i]));
  return most;
}

/// The message of the Error that `call` throws in a process of its own.
template <class F>
std::string refusal_in_child(F call) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const int status = in_child([&] {
    const std::string said = refusal(call).what();
    return write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1;
  });
  close(ends[1]);
  CHECK(status == 0);
  std::string said(4096, ' ');
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read(ends[0], said.data(), said.size()))));
  close(ends[0]);
  return said;
}

}  // namespace

TEST_CASE("Target::emulated computes calls on the host, several at a time, and leaves Device::cuda alone",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  const int devices = runtime::cuda::device_count();
  Small exactly, ampere, hopper;
  exactly.run(Target::oracle);
  std::thread other([&] { ampere.run(Target::emulated("sm_80:seed=3:sms=2")); });
  hopper.run(Target::emulated("sm_90a"));
  other.join();
  CHECK(apart(exactly.o, ampere.o) < 1e-5f);
  CHECK(apart(exactly.o, hopper.o) < 1e-5f);
  CHECK(runtime::cuda::device_count() == devices);
  CHECK(Target::emulated("sm_90a") == Target::emulated("sm_90a:seed=1"));
  CHECK_FALSE(Target::emulated("sm_90a") == Target::emulated("sm_80"));
}

TEST_CASE("an emulated GPU computes gradients on the host, in a workspace of the host", "[emulated]") {
  if (skipped_without_compiler()) return;
  Small in, exactly, here;
  for (Small* one : {&exactly, &here}) {
    const Attention attention{.score = [](Float s, At at) { return s - 0.1f * f32(at.q - at.kv); },
                              .target = one == &here ? Target::emulated("sm_90a") : Target::oracle};
    const Backward call{.q = in.q, .k = in.k, .v = in.v, .grad_o = in.q, .dq = one->q, .dk = one->k, .dv = one->v};
    const std::size_t bytes = attention.workspace(call);
    auto memory = Device::cpu().array<std::uint8_t>({static_cast<std::int64_t>(bytes) + 1});
    attention.backward(call, {.workspace = std::as_writable_bytes(memory.values()).first(bytes)});
  }
  CHECK(apart(exactly.q, here.q) < 1e-4f);
  CHECK(apart(exactly.k, here.k) < 1e-4f);
  CHECK(apart(exactly.v, here.v) < 1e-4f);
}

TEST_CASE("targets that are not emulated are refused", "[emulated]") {
  const auto message = [](const char* gpu) {
    return std::string(refusal([&] { Target::emulated(gpu, somewhere); }).what());
  };
  golden_error("bad-target.architecture", message("sm_100"));
  golden_error("bad-target.number", message("sm_80:seed=many"));
  golden_error("bad-target.sms", message("sm_80:sms=0"));
  golden_error("bad-target.setting", message("sm_90a:clock=2"));
  golden_error("bad-target", refusal([] { runtime::emulated::gpu_of("emulated"); }).what());
}

TEST_CASE("an emulated GPU refuses arrays of a GPU", "[emulated]") {
  Small small;
  const Attention attention{.target = Target::emulated("sm_90a")};
  const auto there = [&](const Array<float>& from) {
    Tensor out = from;
    out.device = Device::cuda();
    return out;
  };
  const Forward call{.q = there(small.q), .k = there(small.k), .v = there(small.v), .o = there(small.o)};
  golden_error("engine-device.emulated", refusal([&] { attention.run(call, somewhere); }).what());
}

TEST_CASE("what stops an emulated kernel is told in words", "[emulated]") {
  golden_error("emulated-processor", refusal([] { runtime::emulated::refuse_processor(); }).what());
  golden_error("emulated-folder", refusal_in_child([] {
                 setenv("TMPDIR", "/dev/null", 1);
                 const runtime::emulated::Folder made;
               }));
  if (skipped_without_compiler()) return;
  runtime::emulated::set_patches({{"codegen/cuda/parts/forward_epilogue_sm80.cuh",
                                   "put_in_lines<Tile>(of);\n  __syncwarp();", "put_in_lines<Tile>(of);"}});
  Small small;
  const Attention attention{.target = Target::emulated("sm_80:seed=100")};
  const Forward call{.q = small.q, .k = small.k, .v = small.v, .o = small.o};
  const std::string found = refusal([&] { attention.run(call, somewhere); }).what();
  runtime::emulated::set_patches({});
  // Threads run in the order of a seed; lines change with the kernel.
  golden_error("emulated-kernel", std::regex_replace(found, std::regex("[0-9]+"), "N"));
}

}  // namespace attune::tests
