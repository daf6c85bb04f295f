// tests/bench/decode.bench.cpp — a decode step compared with plain reads of the same memory by as many threads, as
// lines of JSON: ./bench_decode [threads [keys [heads of keys]]]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <attune/attune.h>

namespace {

using namespace attune;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Threads that wait without sleeping, so that nothing but reading is timed. The caller is one of them.
class Readers {
 public:
  explicit Readers(int count) : count_(count) {
    for (int i = 1; i < count; ++i)
      threads_.emplace_back([this, i] {
        for (int seen = 0;; ++seen) {
          while (round_.load(std::memory_order_acquire) == seen) {
          }
          if (!from_) return;
          part(i);
          left_.fetch_sub(1, std::memory_order_acq_rel);
        }
      });
  }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;
  ~Readers() {
    from_ = nullptr;
    ++round_;
    for (std::thread& one : threads_) one.join();
  }
  /// Seconds until all threads have read their parts.
  double operator()(const void* from, std::size_t bytes) {
    from_ = static_cast<const Line*>(from);
    lines_ = static_cast<std::int64_t>(bytes / sizeof(Line));
    left_ = count_ - 1;
    const auto start = Clock::now();
    ++round_;
    part(0);
    while (left_.load(std::memory_order_acquire) > 0) {
    }
    return since(start);
  }

 private:
  using Line = std::uint64_t __attribute__((vector_size(64)));

  void part(int nth) {
    Line sums[4] = {};
    for (std::int64_t i = lines_ * nth / count_; i + 4 <= lines_ * (nth + 1) / count_; i += 4)
      for (std::int64_t j = 0; j < 4; ++j) sums[j] ^= from_[i + j];
    const Line all = (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]);
    kept_.fetch_xor(all[0], std::memory_order_relaxed);
  }

  const int count_;
  const Line* from_ = nullptr;
  std::int64_t lines_ = 0;
  std::atomic<int> round_{0}, left_{0};
  std::atomic<std::uint64_t> kept_{0};
  std::vector<std::thread> threads_;
};

double median(std::vector<double>& of) {
  std::ranges::sort(of);
  return of[of.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int nth, int otherwise) { return argc > nth ? std::atoi(argv[nth]) : otherwise; };
  const int threads = number(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::int64_t keys = number(2, 8192), kv_heads = number(3, 8), heads = 4 * kv_heads, d = 128;
  // Several caches in turn, so that none is found in the processor's.
  constexpr std::size_t copies = 8;
  const Device host = Device::cpu();
  std::vector<Array<bf16>> kept;
  for (std::size_t i = 0; i < copies; ++i) {
    kept.push_back(host.array<bf16>({2, kv_heads, keys, d}));
    std::uint32_t dice = 1;
    for (bf16& x : kept.back().values()) {
      dice = dice * 1664525 + 1013904223;
      x.bits = static_cast<std::uint16_t>(0x3c00 | dice >> 23 | (dice & 0x8000));  // 2^-7 to 2^0, of both signs
    }
  }
  const auto q = host.array<bf16>({1, heads, 1, d});
  for (std::size_t i = 0; i < q.values().size(); ++i) q.data()[i] = static_cast<float>(i % 7) * 0.1f - 0.3f;
  const auto o = host.array<bf16>({1, heads, 1, d});
  const Attention attention{.target = Target::cpu};
  const std::size_t size = kept[0].values().size_bytes();
  const auto call = [&](std::size_t nth) {
    const bf16* const data = kept[nth % copies].data();
    const std::initializer_list<std::int64_t> shape{1, kv_heads, keys, d};
    return Forward{
        .q = q, .k = Tensor(data, DType::bf16, shape), .v = Tensor(data + size / 4, DType::bf16, shape), .o = o};
  };
  Resources with{.executor = {.workers = threads}};
  const auto workspace = host.array<std::uint8_t>({static_cast<std::int64_t>(attention.workspace(call(0), with))});
  with.workspace = std::as_writable_bytes(workspace.values());
  for (std::size_t i = 0; i < copies; ++i) attention.run(call(i), with);

  std::vector<double> read, awake, asleep;
  for (int round = 0; round < 40; ++round) {
    const auto nth = static_cast<std::size_t>(round);
    {
      Readers readers(threads);
      for (std::size_t i = 0; i < 2 * copies; ++i) {
        const double seconds = readers(kept[i % copies].data(), size);
        if (i > 1) read.push_back(seconds);
      }
    }
    for (std::size_t i = 0; i < 2 * copies; ++i) {
      const auto start = Clock::now();
      attention.run(call(i), with);
      if (i > 1) awake.push_back(since(start));
    }
    // The pool's threads have gone to sleep.
    for (std::size_t i = 0; i < 4; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const auto start = Clock::now();
      attention.run(call(nth + i), with);
      asleep.push_back(since(start));
    }
  }
  const double bytes = static_cast<double>(size), plain = median(read), one = median(awake), other = median(asleep);
  std::printf("{\"threads\": %d, \"mb\": %.1f, \"read_gb_s\": %.1f, \"decode_gb_s\": %.1f, \"of_read\": %.3f, "
              "\"after_sleep_gb_s\": %.1f, \"after_sleep_of_read\": %.3f, \"best\": [%.1f, %.1f, %.1f], \"us\": [%.1f, "
              "%.1f, %.1f]}\n",
              threads, bytes / 1e6, bytes / plain / 1e9, bytes / one / 1e9, plain / one, bytes / other / 1e9,
              plain / other, bytes / read.front() / 1e9, bytes / awake.front() / 1e9, bytes / asleep.front() / 1e9,
              plain * 1e6, one * 1e6, other * 1e6);
}
