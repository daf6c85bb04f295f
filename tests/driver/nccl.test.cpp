// tests/driver/nccl.test.cpp — ranks by a fake NCCL on a fake driver: what is sent, in which order, and what goes wrong
#include <attune/ranks.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "runtime/platform/nvidia/driver.h"
#include "runtime/ranks/transport/communicator.h"
#include "runtime/ranks/transport/transport.h"
#include "tests/catch.h"
#include "tests/comes_true.h"
#include "tests/driver/fake_driver.h"
#include "tests/driver/fake_nccl.h"
#include "tests/golden.h"
#include "tests/ranks.h"
#include "tests/refusal.h"

using namespace attune;
using tests::comes_true;
using tests::on_ranks;
using tests::refusal;
namespace fake = tests::fake_nccl;
namespace fake_driver = tests::fake_driver;
using Clock = std::chrono::steady_clock;
using Calls = std::vector<std::string>;

namespace {

/// A number of an ncclResult_t.
constexpr int cuda_error = 1, remote_error = 6;

/// All ranks of a new id, each made by a thread. With little time they may miss each other on a busy machine, and are
/// made again.
std::vector<Transport> ranks(int count, double seconds = 60) {
  for (int tries = 0; tries < 100; ++tries) {
    const auto id = nccl_id();
    std::vector<Transport> out(static_cast<std::size_t>(count));
    std::vector<std::thread> making;
    std::atomic<int> late{0};
    for (int rank = 0; rank < count; ++rank)
      making.emplace_back([&, rank] {
        try {
          out[static_cast<std::size_t>(rank)] = nccl(id, rank, count, 0, seconds);
        } catch (const Error& e) {
          if (e.code != "ranks-timeout") throw;
          ++late;
        }
      });
    for (std::thread& t : making) t.join();
    if (late == 0) return out;
  }
  FAIL("ranks do not meet within " << seconds << " s");
  return {};
}

/// Communicators end on threads of their own.
bool all_have_ended() {
  return comes_true([] { return fake::live() == 0; });
}
/// Whether this is the last thing that a rank asks of NCCL.
bool ends_with(int rank, const char* what) {
  return comes_true([&] {
    const Calls all = fake::calls(rank);
    return !all.empty() && all.back() == what;
  });
}

/// A communicator that has not ended after a second keeps its memory.
constexpr std::chrono::seconds given_to_end{1};

/// A stream of the fake driver.
struct Stream {
  runtime::cuda::cu::Stream made = nullptr;
  Stream() {
    const runtime::cuda::Current current(0);
    runtime::cuda::driver().cuStreamCreate(&made, 0);
  }
  ~Stream() { runtime::cuda::driver().cuStreamDestroy(made); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

template <std::size_t N>
std::array<std::byte, N> bytes_from(int first) {
  std::array<std::byte, N> out;
  for (std::size_t i = 0; i < N; ++i) out[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return out;
}

/// Sends one byte to the next rank and receives one of the one before.
void one_byte(const Transport& at, void* stream) {
  std::byte there{}, here{};
  const Transport::Chunk send{(at.rank + 1) % at.count, &there, 1},
      receive{(at.rank + at.count - 1) % at.count, &here, 1};
  at.exchange(std::span(&send, 1), std::span(&receive, 1), stream);
}

/// Two ranks, each with an exchange on a stream that reaches its first `reached` events and never the others. If they
/// miss each other, they are made again, as in `ranks`.
std::vector<Transport> given_to(void* stream, int reached, double seconds) {
  for (int tries = 0; tries < 100; ++tries) {
    const auto both = ranks(2, seconds);
    fake::forget();
    fake_driver::stick(reached);
    const auto errors = on_ranks(both, [&](const Transport& at) { one_byte(at, stream); });
    fake_driver::stick(-1);
    if (errors.empty()) return both;
    for (const Error& e : errors) REQUIRE(e.code == "ranks-timeout");
  }
  FAIL("ranks do not meet within " << seconds << " s");
  return {};
}

/// Resets the fakes.
struct Mended {
  ~Mended() {
    for (const char* function : {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommFinalize", "ncclSend",
                                 "ncclGroupEnd", "ncclGroupStart"})
      fake::refuse(function, 0);
    fake::report(0);
    fake::say("");
    fake_driver::stick(-1);
  }
};

}  // namespace

TEST_CASE("NCCL gets a group of sends and receives in the order of parts, run by run", "[driver]") {
  auto both = ranks(2);
  Stream stream;
  fake::forget();
  std::vector<std::vector<std::byte>> got(2, std::vector<std::byte>(20));
  REQUIRE(on_ranks(both, [&](const Transport& at) {
            // A part, one that is empty, and one of three runs of two bytes, four apart.
            auto data = bytes_from<20>(100 * at.rank);
            const int peer = 1 - at.rank;
            std::byte* const into = got[static_cast<std::size_t>(at.rank)].data();
            const std::array send{Transport::Chunk{peer, data.data(), 5}, Transport::Chunk{peer, nullptr, 0, 7, 0},
                                  Transport::Chunk{peer, data.data() + 8, 6, 3, 4}};
            const std::array receive{Transport::Chunk{peer, into, 5}, Transport::Chunk{peer, nullptr, 0},
                                     Transport::Chunk{peer, into + 8, 6, 3, 4}};
            at.exchange(send, receive, stream.made);
          }).empty());
  const Calls expected{"send 5 to 1",      "send 2 to 1",      "send 2 to 1",      "send 2 to 1",
                       "receive 5 from 1", "receive 2 from 1", "receive 2 from 1", "receive 2 from 1"};
  CHECK(fake::calls(0) == expected);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::byte> wanted(20);
    const auto theirs = bytes_from<20>(100 * (1 - rank));
    for (const int i : {0, 1, 2, 3, 4, 8, 9, 12, 13, 16, 17})
      wanted[static_cast<std::size_t>(i)] = theirs[static_cast<std::size_t>(i)];
    CHECK(got[static_cast<std::size_t>(rank)] == wanted);
  }
  both.clear();
  CHECK(all_have_ended());
  CHECK(fake::calls(0).back() == "destroy");
}

TEST_CASE("without a stream, parts of the host's memory go through the device's", "[driver]") {
  const int memory = fake_driver::live_memory();
  auto start = Clock::now();
  {
    const auto all = ranks(3);
    const auto errors = on_ranks(all, [&](const Transport& at) {
      for (int round = 0; round < 50; ++round) {
        const auto size = static_cast<std::size_t>(1000 * round + 10);
        std::vector<std::vector<char>> out, in;
        std::vector<Transport::Chunk> send, receive;
        for (int peer = 0; peer < at.count; ++peer) {  // this rank too
          out.emplace_back(size, static_cast<char>(at.rank * 16 + peer));
          in.emplace_back(2 * size);
        }
        for (int peer = 0; peer < at.count; ++peer) {
          const auto i = static_cast<std::size_t>(peer);
          send.push_back({peer, out[i].data(), size, 2, size / 2});
          receive.push_back({peer, in[i].data(), size, 2, size});
        }
        at.exchange(send, receive, nullptr);
        for (int peer = 0; peer < at.count; ++peer)
          for (std::size_t i = 0; i < 2 * size; ++i) {
            const bool is_sent = i < size / 2 || (i >= size && i < size + size / 2);
            if (in[static_cast<std::size_t>(peer)][i] != (is_sent ? static_cast<char>(peer * 16 + at.rank) : 0))
              throw Error("wrong", "a byte is not what was sent", {}, "", "");
          }
      }
      runtime::ranks::compare(at, {1, 2}, "the weather", nullptr);
      std::vector<double> values{1.0 + at.rank, 10};
      runtime::ranks::sum(at, Tensor(values.data(), DType::f64, {2}), nullptr);
      if (values != std::vector{6.0, 30.0}) throw Error("wrong", "a sum is not that of all ranks", {}, "", "");
    });
    CHECK(errors.empty());
    CHECK(fake_driver::live_memory() == memory + 3);
    start = Clock::now();
  }
  CHECK((fake_driver::live_memory() == memory || Clock::now() - start >= given_to_end));
  CHECK(all_have_ended());
}

TEST_CASE("ranks that NCCL does not bring together within the time limit throw, and abort", "[driver]") {
  const auto start = Clock::now();
  fake::forget();
  const auto id = nccl_id();
  tests::golden_error("ranks-timeout.nccl-init", refusal([&] { nccl(id, 1, 3, 0, 0.1, Line{}); }).what());
  CHECK(all_have_ended());
  CHECK(fake::calls(1) == Calls{"abort"});
  Stream stream;
  for (void* where : {static_cast<void*>(nullptr), static_cast<void*>(stream.made)}) {
    auto both = ranks(2, 0.1);
    fake::forget();
    const Error late = refusal([&] { one_byte(both[0], where); });
    tests::golden_error("ranks-timeout.nccl-late", late.what());
    CHECK(ends_with(0, "abort"));
    // Every later exchange throws the same Error.
    CHECK(refusal([&] { one_byte(both[0], nullptr); }).problem == late.problem);
    both.clear();
    CHECK(all_have_ended());
  }
  CHECK(Clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("an exchange that never ends on its stream is aborted, and the next one says so", "[driver]") {
  const Mended mended;
  Stream stream;
  const auto both = given_to(stream.made, 2, 0.2);  // both ranks' exchanges begin, and do not end
  CHECK(all_have_ended());
  CHECK(fake::calls(0).back() == "abort");
  for (const Transport& at : both) CHECK(refusal([&] { one_byte(at, stream.made); }).code == "ranks-timeout");
}

TEST_CASE("no rank waits for one that keeps its communicator", "[driver]") {
  struct Waiting {
    Waiting() { fake::wait_for_all(true); }
    ~Waiting() { fake::wait_for_all(false); }
  };
  const int memory = fake_driver::live_memory();
  const auto start = Clock::now();
  bool in_time = true;
  {
    const Waiting waiting;
    auto both = ranks(2);
    fake::forget();
    CHECK(on_ranks(both, [](const Transport& at) { one_byte(at, nullptr); }).empty());
    both[1] = {};  // destroyed, while the other stays
    CHECK(ends_with(1, "destroy"));
    const auto last = Clock::now();
    both[0] = {};
    in_time = Clock::now() - last < given_to_end;
    CHECK(ends_with(0, "destroy"));
    // A communicator that was made too late is also kept.
    both = ranks(2, 0.1);
    CHECK(refusal([&] { one_byte(both[0], nullptr); }).code == "ranks-timeout");
    CHECK(ends_with(0, "abort"));
    both.clear();
  }
  CHECK(Clock::now() - start < std::chrono::seconds(60));
  CHECK(all_have_ended());
  // Memory that an exchange may still use is kept: one rank's buffers each time.
  const int kept = fake_driver::live_memory() - memory;
  CHECK((kept == 2 || (kept == 3 && !in_time)));
}

TEST_CASE("what a stream does before an exchange is not counted", "[driver]") {
  const Mended mended;
  Stream stream;
  const auto both = given_to(stream.made, 0, 0.05);  // exchanges do not begin
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(fake::live() == 2);
}

TEST_CASE("a rank that stops ends what others of this process wait for", "[driver]") {
  const auto start = Clock::now();
  fake::forget();
  const auto both = ranks(2, 600);
  const std::vector<Error> errors = on_ranks(both, [](const Transport& at) {
    if (at.rank == 0) return at.stop();
    one_byte(at, nullptr);
  });
  CHECK(Clock::now() - start < std::chrono::seconds(60));
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].code == "ranks-timeout");
  CHECK(errors[0].problem == "rank 0 has failed");
  CHECK(all_have_ended());
  CHECK(fake::calls(0) == Calls{"abort"});
  CHECK(fake::calls(1).back() == "abort");
  CHECK(refusal([&] { one_byte(both[0], nullptr); }).code == "ranks-timeout");
}

TEST_CASE("what NCCL refuses or reports is an Error with its words", "[driver]") {
  const Mended mended;
  fake::say("transport.cc:7 no path\nto rank 1");
  const auto id = nccl_id();
  fake::refuse("ncclCommInitRankConfig", cuda_error);
  tests::golden_error("nccl.init", refusal([&] { nccl(id, 0, 2, 0, 60, Line{}); }).what());
  fake::refuse("ncclCommInitRankConfig", 0);
  fake::refuse("ncclGetUniqueId", cuda_error);
  CHECK(refusal([] { nccl_id(); }).code == "nccl");
  fake::refuse("ncclGetUniqueId", 0);
  for (const char* function : {"ncclGroupStart", "ncclSend", "ncclGroupEnd"}) {
    const auto both = ranks(2);
    fake::refuse(function, cuda_error);
    const Error refused = refusal([&] { one_byte(both[0], nullptr); });
    CHECK(refused.code == "nccl");
    CHECK(refused.why.find(function) == 0);
    fake::refuse(function, 0);
    // No group is left open.
    const auto more = ranks(2);
    CHECK(on_ranks(more, [](const Transport& at) { one_byte(at, nullptr); }).empty());
  }
  auto both = ranks(2);
  fake::report(remote_error);
  tests::golden_error("ranks-timeout.nccl-remote", refusal([&] { one_byte(both[0], nullptr); }).what());
  fake::report(0);
  CHECK(refusal([&] { one_byte(both[0], nullptr); }).code == "ranks-timeout");
  both.clear();
  CHECK(all_have_ended());
  CHECK(refusal([&] { nccl(id, 2, 2, 0); }).code == "ranks-count");
  CHECK(refusal([&] { nccl(id, 0, 2, 99); }).code == "no-device");
}

TEST_CASE("a communicator of the caller's is used, and never aborted or destroyed", "[driver]") {
  const Mended mended;
  const auto comms = fake::communicators(2, 0);
  fake::forget();
  Stream stream;
  {
    const std::vector<Transport> both{nccl(comms[0], 0), nccl(comms[1], 0)};
    CHECK(both[1].rank == 1);
    CHECK(both[1].count == 2);
    for (void* where : {static_cast<void*>(nullptr), static_cast<void*>(stream.made)})
      CHECK(on_ranks(both, [&](const Transport& at) { one_byte(at, where); }).empty());
    both[0].stop();
    CHECK(refusal([&] { one_byte(both[0], nullptr); }).code == "ranks-timeout");
  }
  CHECK(refusal([&] { one_byte(nccl(comms[0], 0, 0.1), stream.made); }).code == "ranks-timeout");
  CHECK(fake::live() == 2);
  tests::golden_error("nccl.null", refusal([] { nccl(nullptr, 0, 60, Line{}); }).what());
  tests::golden_error("nccl.device", refusal([&] { nccl(comms[0], 1, 60, Line{}); }).what());
  for (const auto comm : comms) runtime::ranks::nccl_loaded().ncclCommDestroy(comm);
}
