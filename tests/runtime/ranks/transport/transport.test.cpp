// tests/runtime/ranks/transport/transport.test.cpp — threads as ranks: exchanges, sums, and ranks that fail or never
// come
#include "runtime/ranks/transport/transport.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <random>
#include <thread>

#include <attune/error.h>

#include "tests/catch.h"
#include "tests/ranks.h"
#include "tests/refusal.h"

using namespace attune;
using tests::on_ranks;

TEST_CASE("parts arrive whole and in order, whatever their sizes", "[ranks]") {
  for (const int count : {1, 2, 3, 8}) {
    std::atomic<int> wrong = 0;
    on_ranks(threads(count), [&](const Transport& at) {
      for (unsigned round = 0; round < 20; ++round) {
        // Every rank knows what every rank sends.
        const auto byte = [&](int from, int to, std::size_t part) {
          return static_cast<std::byte>(from * 31 + to * 7 + static_cast<int>(part * 3 + round));
        };
        const auto size = [&](int from, int to, std::size_t part) {
          return static_cast<std::size_t>((from * 13 + to * 5 + static_cast<int>(part) + static_cast<int>(round)) % 97);
        };
        std::vector<std::vector<std::byte>> memory;
        std::vector<Transport::Chunk> send, receive;
        for (int peer = 0; peer < count; ++peer)
          for (std::size_t part = 0; part < 3; ++part) {
            memory.emplace_back(size(at.rank, peer, part), byte(at.rank, peer, part));
            send.push_back({peer, memory.back().data(), memory.back().size()});
            memory.emplace_back(size(peer, at.rank, part), std::byte{0});
            receive.push_back({peer, memory.back().data(), memory.back().size()});
          }
        at.exchange(send, receive, nullptr);
        for (std::size_t i = 0; i < receive.size(); ++i)
          for (std::size_t j = 0; j < receive[i].bytes; ++j)
            if (static_cast<std::byte*>(receive[i].data)[j] != byte(receive[i].peer, at.rank, i % 3)) ++wrong;
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("sums over ranks are in the order of ranks, and alike on all", "[ranks]") {
  for (const DType type : {DType::f32, DType::f64}) {
    constexpr int count = 5, n = 1000;
    std::vector<std::vector<double>> numbers(count, std::vector<double>(n)), got = numbers;
    std::mt19937 random(1);
    for (auto& one : numbers)
      for (double& x : one) x = static_cast<double>(std::normal_distribution<float>()(random));
    on_ranks(threads(count), [&](const Transport& at) {
      const auto& mine = numbers[static_cast<std::size_t>(at.rank)];
      std::vector<double> wide(mine);
      std::vector<float> narrow(mine.begin(), mine.end());
      const Tensor values(type == DType::f64 ? static_cast<void*>(wide.data()) : narrow.data(), type, {n});
      runtime::ranks::sum(at, values, nullptr);
      auto& into = got[static_cast<std::size_t>(at.rank)];
      for (std::size_t i = 0; i < n; ++i) into[i] = type == DType::f64 ? wide[i] : double{narrow[i]};
    });
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (const auto& one : numbers) sum += one[i];
      const double expected = type == DType::f64 ? sum : double{static_cast<float>(sum)};
      for (const auto& one : got) REQUIRE(one[i] == expected);
    }
  }
}

TEST_CASE("a rank that never comes is an Error on the others within the time limit", "[ranks]") {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Error> errors = on_ranks(threads(3, 0.2), [](const Transport& at) {
    if (at.rank == 1) return;
    std::byte there{}, here{};
    const Transport::Chunk send{1, &there, 1}, receive{1, &here, 1};
    at.exchange(std::span(&send, 1), std::span(&receive, 1), nullptr);
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  REQUIRE(errors.size() == 2);
  for (const Error& e : errors) CHECK(e.code == "ranks-timeout");
}

TEST_CASE("what a rank sends may go once nobody can read it any more", "[ranks]") {
  const std::vector<Transport> all = threads(2, 0.1);
  {
    std::vector<std::byte> gone(1 << 20);
    const Transport::Chunk part{1, gone.data(), gone.size()};
    CHECK(tests::refusal([&] { all[0].exchange(std::span(&part, 1), {}, nullptr); }).code == "ranks-timeout");
  }
  std::vector<std::byte> here(1 << 20);
  const Transport::Chunk part{0, here.data(), here.size()};
  CHECK(tests::refusal([&] { all[1].exchange({}, std::span(&part, 1), nullptr); }).code == "ranks-timeout");
}

TEST_CASE("a rank that fails stops the others before the time limit", "[ranks]") {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Error> errors = on_ranks(threads(2, 600), [](const Transport& at) {
    if (at.rank == 0) return at.stop();
    std::byte here{};
    const Transport::Chunk receive{0, &here, 1};
    at.exchange({}, std::span(&receive, 1), nullptr);
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].code == "ranks-timeout");
  CHECK(errors[0].problem == "rank 0 has failed");
}

TEST_CASE("ranks that are not at the same call hear of it, all of them", "[ranks]") {
  const std::vector<Error> sizes = on_ranks(threads(2, 60), [](const Transport& at) {
    std::byte there[8]{}, here[8]{};
    const std::size_t bytes = at.rank == 0 ? 4 : 8;
    const Transport::Chunk send{1 - at.rank, there, bytes}, receive{1 - at.rank, here, bytes};
    at.exchange(std::span(&send, 1), std::span(&receive, 1), nullptr);
  });
  REQUIRE(sizes.size() == 2);
  for (const Error& e : sizes) CHECK(e.code == "ranks-differ");
  const std::vector<Error> digests = on_ranks(threads(3, 60), [](const Transport& at) {
    runtime::ranks::compare(at, {1, at.rank == 2 ? 3u : 2u}, "the weather", nullptr);
  });
  REQUIRE(digests.size() == 3);
  for (const Error& e : digests) {
    CHECK(e.code == "ranks-differ");
    CHECK(e.problem == "ranks do not agree on the weather");
  }
  CHECK(on_ranks(threads(3, 60), [](const Transport& at) {
          runtime::ranks::compare(at, {1, 2}, "the weather", nullptr);
        }).empty());
  CHECK(tests::refusal([] { threads(0); }).code == "ranks-count");
}
