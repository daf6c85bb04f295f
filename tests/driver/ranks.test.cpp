// tests/driver/ranks.test.cpp — calls over ranks on a fake driver: launches and copies, no waits, refusals
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <set>

#include "runtime/platform/memory.h"
#include "tests/catch.h"
#include "tests/driver/fake_driver.h"
#include "tests/ranks.h"
#include "tests/refusal.h"

using namespace attune;
namespace fake = tests::fake_driver;

namespace {

constexpr std::int64_t length = 1536;
const Attention causal{.score = [](Float s, At at) { return s + 0.1f * f32(at.head); }, .mask = mods::causal()};

Tensor unplaced(std::int64_t heads, std::int64_t rows, std::int64_t d = 64) {
  return Tensor(nullptr, DType::bf16, {1, heads, rows, d});
}
Forward whole() { return {.q = unplaced(4, length), .k = unplaced(2, length), .v = unplaced(2, length)}; }

/// This rank's tensors on a device.
struct Own {
  Array<bf16> q, k, v, o, grad, dq, dk, dv;
  explicit Own(std::int64_t rows, const Device& gpu = Device::cuda())
      : q(gpu.array<bf16>({1, 4, rows, 64})), k(gpu.array<bf16>({1, 2, rows, 64})),
        v(gpu.array<bf16>({1, 2, rows, 64})), o(gpu.array<bf16>({1, 4, rows, 64})),
        grad(gpu.array<bf16>({1, 4, rows, 64})), dq(gpu.array<bf16>({1, 4, rows, 64})),
        dk(gpu.array<bf16>({1, 2, rows, 64})), dv(gpu.array<bf16>({1, 2, rows, 64})) {}
  Forward forward() const { return {.q = q, .k = k, .v = v, .o = o}; }
  Backward backward() const { return {.q = q, .k = k, .v = v, .grad_o = grad, .dq = dq, .dk = dk, .dv = dv}; }
};

constexpr Sharding::How zigzag{
    .assignment = Sharding::Assignment::zigzag, .travel = Sharding::Travel::gather, .groups = 2};

std::size_t launches_of(std::string_view kernel) {
  const auto all = fake::launches();
  return static_cast<std::size_t>(std::ranges::count_if(
      all, [&](const fake::Launch& one) { return one.kernel.find(kernel) != std::string::npos; }));
}

}  // namespace

TEST_CASE("a forward over ranks is a launch for each range and group, on several streams, without waits", "[driver]") {
  std::vector<Transport> ranks = threads(2, 60);
  std::vector<Sharding> sharding(2);
  std::vector<std::unique_ptr<Own>> own(2);
  const auto on_all = [&](const auto& body) { CHECK(tests::on_ranks(ranks, body).empty()); };
  on_all([&](const Transport& at) {
    const auto i = static_cast<std::size_t>(at.rank);
    sharding[i] = Sharding(std::span(&causal, 1), whole(), at, zigzag);
    own[i] = std::make_unique<Own>(length / 2);
    causal.run(own[i]->forward(), {.sharding = sharding[i]});
  });
  fake::forget();
  on_all([&](const Transport& at) {
    const auto i = static_cast<std::size_t>(at.rank);
    causal.run(own[i]->forward(), {.sharding = sharding[i]});
  });
  // Two groups of heads; one rank holds both ends of the sequence, the other the range between.
  CHECK(launches_of("forward_sm90") == 6);
  std::set<void*> streams;
  for (const fake::Launch& one : fake::launches()) streams.insert(one.stream);
  CHECK(streams.size() >= 3);
  // The second call allocates only in stream order and waits for nothing.
  CHECK(fake::calls_behind_the_back() == 0);
  CHECK(fake::calls("cuMemcpy2DAsync") + fake::calls("cuMemcpyAsync") >= 8);
}

TEST_CASE("decode queries go to the keys where their kernel takes these, else keys to them", "[driver]") {
  const Attention plain{.score = [](Float s, At at) { return s + 0.25f * f32(at.kv_len - at.kv); }};
  const auto kernels = [&](DType type, std::int64_t shift) {
    const auto like = [&](std::int64_t heads, std::int64_t rows) {
      return Tensor(nullptr, type, {1, heads, rows, 64});
    };
    fake::forget();
    CHECK(tests::on_ranks(threads(2, 60), [&](const Transport& at) {
            const Forward call{.q = like(4, 1), .k = like(2, length), .v = like(2, length), .q_offset = length - 1};
            const Sharding sharding(std::span(&plain, 1), call, at, {.travel = Sharding::Travel::decode});
            const std::int64_t queries = sharding.of(at.rank).empty() ? 0 : 1, keys = length / 2;
            const auto memory = Device::cuda().array<std::uint8_t>({1 << 20});
            const auto placed = [&](std::int64_t heads, std::int64_t rows, std::int64_t from) {
              return Tensor(memory.data() + from, type, {1, heads, rows, 64}, {}, Device::cuda());
            };
            plain.run({.q = placed(4, queries, 0),
                       .k = placed(2, keys, 4096 + shift),
                       .v = placed(2, keys, 500000 + shift),
                       .o = placed(4, queries, 1000000),
                       .q_offset = length - 1},
                      {.sharding = sharding});
          }).empty());
    return std::array{launches_of("decode_sm80"), launches_of("copy_rows"), launches_of("combine_ranks")};
  };
  // One rank has the query and merges; each copies its results to evenly strided runs.
  CHECK(kernels(DType::bf16, 0) == std::array<std::size_t, 3>{2, 1, 1});
  // Keys whose rows do not begin at multiples of 16 bytes are copied.
  CHECK(kernels(DType::bf16, 4) == std::array<std::size_t, 3>{2, 5, 1});
  CHECK(kernels(DType::f32, 0) == std::array<std::size_t, 3>{0, 0, 0});
}

TEST_CASE("a backward over ranks adds up what launches and ranks give", "[driver]") {
  fake::forget();
  CHECK(tests::on_ranks(threads(2, 60), [&](const Transport& at) {
          const Sharding sharding(std::span(&causal, 1), whole(), at, zigzag);
          const Own own(length / 2);
          causal.backward(own.backward(), {.sharding = sharding});
        }).empty());
  // For dk and dv of each of two groups: what one rank's second launch gives, and what both ranks give to both.
  CHECK(launches_of("add_parts") == 12);
}

TEST_CASE("Sharding that go, or need more memory, wait for the call that uses it", "[driver]") {
  const Own own(length);
  {
    const Sharding sharding(std::span(&causal, 1), whole(), {}, {.travel = Sharding::Travel::gather});
    causal.run(own.forward(), {.sharding = sharding});
    fake::forget();
    causal.run(own.forward(), {.sharding = sharding});
    CHECK(fake::calls("cuEventSynchronize") == 0);
    causal.backward(own.backward(), {.sharding = sharding});
    CHECK(fake::calls("cuEventSynchronize") == 1);
    CHECK(fake::calls("cuMemFree") == 1);
  }
  CHECK(fake::calls("cuEventSynchronize") == 2);
  CHECK(fake::calls("cuMemFree") == 2);
}

TEST_CASE("a rank that fails within a call leaves nothing that others could wait for", "[driver]") {
  std::vector<std::string> codes(2), problems(2);
  tests::on_ranks(threads(2, 60), [&](const Transport& at) {
    const Sharding sharding(std::span(&causal, 1), whole(), at, zigzag);
    const Own own(length / 2);
    Forward call = own.forward();
    if (at.rank == 1) call.k = unplaced(2, 5);  // rows of another rank's
    const Error refused = tests::refusal([&] { causal.run(call, {.sharding = sharding}); });
    codes[static_cast<std::size_t>(at.rank)] = refused.code;
    problems[static_cast<std::size_t>(at.rank)] = refused.problem;
  });
  CHECK(codes[1] == "sharding-shape");
  CHECK(codes[0] == "ranks-timeout");
  CHECK(problems[0] == "rank 1 has failed");
}

TEST_CASE("calls over ranks on a device refuse graphs and covers", "[driver]") {
  const Sharding sharding(std::span(&causal, 1), whole(), {}, {.travel = Sharding::Travel::gather});
  const Own own(length);
  causal.run(own.forward(), {.sharding = sharding});
  const Cover cover = causal.cover(own.forward());
  CHECK_FALSE(cover);
  const auto doc = Device::cuda().array<int>({length}, "doc");
  const Attention documents{.mask = [=](At at) { return doc[at.q] == doc[at.kv]; }};
  CHECK(tests::refusal([&] { Sharding(std::span(&documents, 1), whole(), Transport{}); }).code == "sharding-capture");
}

namespace {

/// Bytes of the fake device, which the host can read.
struct Bytes {
  Array<std::uint8_t> all = Device::cuda().array<std::uint8_t>({64});
  std::uint8_t* at(int i) const { return all.data() + i; }
};

/// What a rank sends to the other one: three runs of two bytes each, eight bytes apart, to be received four apart.
std::string exchanged(const Transport& with, std::size_t received_runs) {
  const runtime::cuda::Current current(0);
  const runtime::cuda::OwnStream stream(runtime::cuda::OwnStream::Priority::usual);
  const Bytes from, to;
  for (int i = 0; i < 64; ++i) *from.at(i) = static_cast<std::uint8_t>(100 * with.rank + i);
  const int peer = 1 - with.rank;
  const std::vector<Transport::Chunk> send{{peer, from.at(1), 6, 3, 8}, {peer, from.at(40), 5}},
      receive{{peer, to.at(0), 6, received_runs, 4}, {peer, to.at(20), 5}};
  with.exchange(send, receive, stream.get());
  std::string out;
  for (const int i : {0, 1, 2, 4, 5, 8, 9, 20, 24}) out += std::to_string(*to.at(i) - 100 * peer) + " ";
  return out;
}

}  // namespace

TEST_CASE("threads copy runs between devices, on the sender's stream and without waiting for either", "[driver]") {
  std::string said[2];
  fake::forget();
  CHECK(tests::on_ranks(threads(2, 60), [&](const Transport& at) { said[at.rank] = exchanged(at, 3); }).empty());
  // Between runs nothing is written: arrays begin with zeros.
  CHECK(said[0] == "1 2 -100 9 10 17 18 40 44 ");
  CHECK(said[1] == "1 2 0 9 10 17 18 40 44 ");
  CHECK(fake::calls("cuMemcpy2DAsync") == 2);
  CHECK(fake::calls("cuStreamSynchronize") == 2 * 2);  // for the zeros of each array
}

TEST_CASE("threads refuse parts of other sizes or numbers of runs on a device, on both ranks", "[driver]") {
  const auto errors = tests::on_ranks(threads(2, 60), [&](const Transport& at) { exchanged(at, at.rank ? 3 : 2); });
  REQUIRE(errors.size() == 2);
  for (const Error& error : errors) CHECK(error.code == "ranks-differ");
}
