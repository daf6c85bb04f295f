// tests/gpu/device.h — helpers of device tests: skipping with a message, the engine, and cases in parallel
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/machine/files.h"
#include "runtime/platform/nvidia/driver.h"
#include "tests/catch.h"
#include "tests/numerics/engines.h"

namespace attune::tests {

/// True, with a message, if there is no device to test on.
inline bool skipped() {
  if (runtime::cuda::device_count() > 0) return false;
  WARN("[skip] no CUDA device: " << runtime::cuda::find_driver().why);
  return true;
}

inline const Engine& device_engine() {
  return *std::ranges::find_if(engines(), [](const Engine& e) { return e.name == "cuda"; });
}

/// Whether two numbers differ by no more than a step of bf16, plus what rounding probabilities to bf16 changes in a sum
/// of four.
inline bool is_near(float x, float y) { return std::fabs(x - y) <= 0.02f + std::fabs(y) * 0x1p-7f; }

/// Standard normal, on the host.
template <class T>
Array<T> normal(unsigned seed, std::initializer_list<std::int64_t> shape) {
  auto out = Device::cpu().array<T>(shape);
  std::mt19937 dice(seed);
  for (T& x : out.values()) x = std::normal_distribution<float>()(dice);
  return out;
}

/// One of as many turns as there are processors, for all processes of this machine: of 64 processes with 64 threads
/// each, thousands would compile at once, and wait for each other's locks of the cache.
class Turn {
 public:
  Turn() {
    namespace fs = std::filesystem;
    std::error_code none;
    const fs::path folder = fs::temp_directory_path(none) / "attune-test-turns";
    if (none || (fs::create_directories(folder, none), none)) return;
    const unsigned turns = std::max(1u, std::thread::hardware_concurrency());
    static std::atomic<unsigned> first{std::random_device()()};
    for (unsigned nth = first++;; ++nth) {
      lock_.emplace(folder / std::to_string(nth % turns), std::chrono::milliseconds(0));
      if (*lock_) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  std::optional<runtime::Lock> lock_;
};

/// Runs `body` for each number below `count`, on all processors because compiling a kernel takes one of them a second;
/// joins the messages.
inline std::string side_by_side(std::size_t count, const std::function<std::string(std::size_t)>& body) {
  std::vector<std::string> said(count);
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < count; i = next++) try {
          const Turn turn;
          said[i] = body(i);
        } catch (const std::exception& e) {
          said[i] = "case " + std::to_string(i) + " threw: " + e.what() + "\n";
        }
    });
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& one : said) all += one;
  return all;
}

}  // namespace attune::tests
