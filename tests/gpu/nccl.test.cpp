// tests/gpu/nccl.test.cpp — two ranks by NCCL, each a thread with a device: what arrives, calls, ranks that fail
#include <attune/ranks.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/platform/nvidia/driver.h"
#include "runtime/ranks/transport/transport.h"
#include "tests/gpu/device.h"
#include "tests/refusal.h"
#include "tests/runtime/ranks/calls.h"

namespace attune::tests {
namespace {

namespace cu = runtime::cuda::cu;
using Clock = std::chrono::steady_clock;

bool without_two_ranks() {
  if (runtime::cuda::device_count() < 2) {
    WARN("[skip] ranks by NCCL need 2 CUDA devices: there are " << runtime::cuda::device_count());
    return true;
  }
  const Error missing = refusal([] { nccl_id(); });
  if (missing.code != "nothing") WARN("[skip] " << missing.why);
  return missing.code != "nothing";
}

/// Two ranks of an id, each on the device of its number.
std::vector<Transport> two_ranks(double seconds) {
  const auto id = nccl_id();
  std::vector<Transport> out(2);
  std::vector<std::optional<Error>> failed(2);
  std::vector<std::thread> making;
  for (std::size_t rank = 0; rank < 2; ++rank)
    making.emplace_back([&, rank] {
      try {
        out[rank] = nccl(id, static_cast<int>(rank), 2, static_cast<int>(rank), seconds);
      } catch (const Error& e) {
        failed[rank] = e;
      }
    });
  for (std::thread& t : making) t.join();
  for (const auto& error : failed)
    if (error) FAIL(error->what());
  return out;
}

/// A stream of a device, which is current while this object lives.
struct Stream {
  runtime::cuda::Current current;
  cu::Stream made = nullptr;
  explicit Stream(int device) : current(device) { runtime::cuda::driver().cuStreamCreate(&made, 1); }
  ~Stream() { runtime::cuda::driver().cuStreamDestroy.raw(made); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  void wait() const { runtime::cuda::driver().cuStreamSynchronize(made); }
};

[[noreturn]] void wrong(const std::string& what) { throw Error("wrong", what, {}, "", ""); }

/// What a rank sends in a round, at a place: every rank knows what every rank sends.
int number(int from, int round, std::int64_t i) { return from * 7919 + round * 104729 + static_cast<int>(i); }

/// The integers that a rank exchanges: a part in one piece, a part of eight runs, and a small one.
constexpr std::int64_t plain = 50000, runs = 8, run = 1000, stride = 1500, small = 3;
constexpr std::int64_t all = plain + runs * stride + small;
std::vector<Transport::Chunk> parts(int peer, int* data) {
  return {{peer, data, plain * sizeof(int)},
          {peer, data + plain, runs * run * sizeof(int), runs, stride * sizeof(int)},
          {peer, data + plain + runs * stride, small * sizeof(int)}};
}
bool is_part(std::int64_t i) { return i < plain || i >= plain + runs * stride || (i - plain) % stride < run; }

}  // namespace

TEST_CASE("two devices exchange parts and runs by NCCL, both ways, again and again", "[gpu]") {
  if (without_two_ranks()) return;
  const auto errors = on_ranks(two_ranks(60), [](const Transport& at) {
    const Stream stream(at.rank);
    const Device host = Device::cpu(), device = Device::cuda(at.rank);
    const auto here = host.array<int>({all}), there = device.array<int>({all}), got = device.array<int>({all});
    for (int round = 0; round < 200; ++round) {
      const bool look = round % 10 == 0;
      if (look) {
        for (std::int64_t i = 0; i < all; ++i) here.data()[i] = number(at.rank, round, i);
        copy(here, there, stream.made);
      }
      at.exchange(parts(1 - at.rank, there.data()), parts(1 - at.rank, got.data()), stream.made);
      if (!look) continue;
      copy(got, here, stream.made);
      for (std::int64_t i = 0; i < all; ++i)
        if (is_part(i) && here.data()[i] != number(1 - at.rank, round, i))
          wrong("round " + std::to_string(round) + ", integer " + std::to_string(i));
      // Memory of the host, in between.
      runtime::ranks::compare(at, {1, static_cast<std::uint64_t>(round)}, "the round", nullptr);
    }
    stream.wait();
  });
  for (const Error& e : errors) FAIL_CHECK(e.what());
}

TEST_CASE("two devices exchange memory of the host by NCCL", "[gpu]") {
  if (without_two_ranks()) return;
  const auto ranks = two_ranks(60);
  const auto errors = on_ranks(ranks, [](const Transport& at) {
    const Device host = Device::cpu();
    const auto there = host.array<int>({all}), got = host.array<int>({all});
    for (int round = 0; round < 20; ++round) {
      for (std::int64_t i = 0; i < all; ++i) there.data()[i] = number(at.rank, round, i), got.data()[i] = -1;
      at.exchange(parts(1 - at.rank, there.data()), parts(1 - at.rank, got.data()), nullptr);
      for (std::int64_t i = 0; i < all; ++i)
        if (got.data()[i] != (is_part(i) ? number(1 - at.rank, round, i) : -1)) wrong("integer " + std::to_string(i));
    }
    std::vector<double> values{1.0 + at.rank, 10};
    runtime::ranks::sum(at, Tensor(values.data(), DType::f64, {2}), nullptr);
    if (values != std::vector{3.0, 20.0}) wrong("a sum");
  });
  for (const Error& e : errors) FAIL_CHECK(e.what());
  const auto differ = on_ranks(ranks, [](const Transport& at) {
    runtime::ranks::compare(at, {1, static_cast<std::uint64_t>(at.rank)}, "the weather", nullptr);
  });
  REQUIRE(differ.size() == 2);
  for (const Error& e : differ) CHECK(e.code == "ranks-differ");
}

TEST_CASE("a rank that stops, or never comes, ends what the other waits for on its device", "[gpu]") {
  if (without_two_ranks()) return;
  for (const bool stops : {true, false})
    for (const bool on_stream : {true, false}) {
      INFO((stops ? "stops" : "never comes") << (on_stream ? ", on a stream" : ", on the host"));
      const auto start = Clock::now();
      const auto errors = on_ranks(two_ranks(stops ? 120 : 3), [&](const Transport& at) {
        const Stream stream(at.rank);
        const auto data = Device::cuda(at.rank).array<int>({all}), got = Device::cuda(at.rank).array<int>({all});
        const auto exchange = [&](void* where) {
          at.exchange(parts(1 - at.rank, data.data()), parts(1 - at.rank, got.data()), where);
        };
        exchange(stream.made);
        stream.wait();
        if (at.rank == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(200));
          return stops ? at.stop() : void();
        }
        if (!on_stream) {
          std::vector<int> host_data(all), host_got(all);
          at.exchange(parts(0, host_data.data()), parts(0, host_got.data()), nullptr);
          return;
        }
        exchange(stream.made);
        stream.wait();  // ends, because the exchange is aborted
        exchange(stream.made);
      });
      REQUIRE(errors.size() == 1);
      CHECK(errors[0].code == "ranks-timeout");
      CHECK(Clock::now() - start < std::chrono::seconds(60));
    }
}

TEST_CASE("ranks that NCCL does not bring together throw within the time limit", "[gpu]") {
  if (without_two_ranks()) return;
  const auto start = Clock::now();
  CHECK(refusal([] { nccl(nccl_id(), 1, 2, 0, 2); }).code == "ranks-timeout");
  CHECK(Clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("calls over ranks by NCCL give the bits of ranks that are threads", "[gpu]") {
  if (without_two_ranks()) return;
  const auto slope = Device::cpu().array<float>({8}, "slope");
  for (std::size_t i = 0; i < 8; ++i) slope.values()[i] = 1.0f / static_cast<float>(i + 2);
  const Attention attention{.score = [=](Float s, At at) { return s + slope[at.head] * f32(at.kv - at.q); },
                            .mask = mods::causal()};
  const Inputs in = inputs(
      {.q_heads = 8, .kv_heads = 4, .q_len = 1900, .kv_len = 1900, .d = 64, .dv = 64, .dtype = DType::bf16});
  const ranks::Results one = ranks::alone(attention, in, {1});
  const std::vector<Transport> by_nccl = two_ranks(60);
  const std::vector<Tensor> captures{slope};
  for (const Sharding::Assignment assignment :
       {Sharding::Assignment::contiguous, Sharding::Assignment::zigzag, Sharding::Assignment::greedy})
    for (const int groups : {1, 2, 4}) {
      INFO(static_cast<int>(assignment) << ", " << groups << " groups");
      const Sharding::How how{.assignment = assignment, .travel = Sharding::Travel::gather, .groups = groups};
      CHECK(ranks::differs(one, ranks::together(attention, in, 2, how, Layout::bhsd, {2}, by_nccl)) == "");
      const ranks::HowBackward back{.results = true, .where = {2}};
      const auto threaded = ranks::together(attention, in, captures, 2, how, back),
                 exchanged = ranks::together(attention, in, captures, 2, how, back, nullptr, by_nccl);
      CHECK(ranks::same_bits(threaded.dq.tensor, exchanged.dq.tensor));
      CHECK(ranks::same_bits(threaded.dk.tensor, exchanged.dk.tensor));
      CHECK(ranks::same_bits(threaded.dv.tensor, exchanged.dv.tensor));
      CHECK(ranks::same_bits(threaded.captured[0].tensor, exchanged.captured[0].tensor));
    }
}

}  // namespace attune::tests
