// runtime/machine/progress.h — reports how far a call is, at most ten times a second
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

namespace attune::runtime {

/// Called with the share of the work done, in [0, 1]; at most about ten times a second, and with 1 once it is done.
using Progress = std::function<void(double)>;

/// The time between two reports.
inline constexpr std::chrono::milliseconds progress_pause{100};

/// Reports how far the work is. Without a listener it does not read the clock.
class Rate {
 public:
  Rate(const Progress& progress, double whole) : progress_(progress), whole_(whole) {}
  void at(double done) {
    if (!progress_) return;
    // The end is reported by the caller, which knows whether anything follows.
    if (done >= whole_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < progress_pause) return;
    last_ = now;
    progress_(done / whole_);
  }

 private:
  const Progress& progress_;
  double whole_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// Converts the fraction of one of `count` equal parts to the fraction of the whole.
inline Progress part_of(const Progress& progress, std::size_t part, std::size_t count) {
  if (!progress || count == 1) return progress;
  return [&progress, part, count](double share) {
    progress((static_cast<double>(part) + share) / static_cast<double>(count));
  };
}

}  // namespace attune::runtime
