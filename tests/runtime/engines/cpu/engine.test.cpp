// tests/runtime/engines/cpu/engine.test.cpp — how many threads a call gets whose caller names no number
#include "runtime/engines/cpu/engine.h"

#include <attune/attune.h>

#include <filesystem>

#include "runtime/machine/options.h"
#include "tests/catch.h"

using namespace attune;
using runtime::cpu::usual_workers;

namespace {

/// q and k of `length` positions, 64 wide.
compiler::Problem square(std::int64_t batch, std::int64_t heads, std::int64_t length) {
  return {.batch = batch,
          .q_heads = heads,
          .kv_heads = heads,
          .q = {.length = length, .total = length},
          .kv = {.length = length, .total = length},
          .d = 64,
          .dv = 64};
}

std::ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

}  // namespace

TEST_CASE("a call gets a thread for each million products, up to ATTUNE_THREADS", "[engine]") {
  const int threads = runtime::options().threads;
  CHECK(usual_workers(square(0, 4, 16)) == 1);
  CHECK(usual_workers(square(1, 4, 0)) == 1);
  CHECK(usual_workers(square(1, 4, 16)) == 1);
  CHECK(usual_workers(square(1, 1, 128)) == std::min(2, threads));
  CHECK(usual_workers(square(8, 32, 4096)) == threads);
  CHECK(usual_workers(square(1 << 20, 1 << 10, 1 << 30)) == threads);
}

TEST_CASE("packed sequences count for what they are, not for the longest", "[engine]") {
  compiler::Problem packed = square(16, 1, 256);
  packed.q.layout = packed.kv.layout = compiler::Layout::packed;
  packed.q.starts.assign(17, 256);
  packed.q.starts[0] = 0;
  packed.kv.starts = packed.q.starts;
  CHECK(usual_workers(packed) == std::min(8, runtime::options().threads));
  packed.kv.starts.assign(17, 0);
  CHECK(usual_workers(packed) == 1);
}

TEST_CASE("a small call starts no thread", "[engine]") {
  const Device host = Device::cpu();
  const Array<float> q = host.array<float>({1, 4, 16, 16}), o = host.array<float>({1, 4, 16, 16});
  const Attention attention{.mask = mods::causal()};
  attention(q, q, q, o);  // compiles, for which threads may be started
  const std::ptrdiff_t before = threads_of_process();
  for (int i = 0; i < 3; ++i) attention(q, q, q, o);
  CHECK(threads_of_process() == before);
}
