// runtime/progress.h — reports how far a call is, at most ten times a second
#pragma once

#include <chrono>
#include <functional>

namespace attune::runtime {

/// Called with the share of the work done, in [0, 1]; at most about ten times a second.
using Progress = std::function<void(double)>;

/// Between two reports.
inline constexpr std::chrono::milliseconds progress_pause{100};

/// Reports how far the work is. Without a listener it does not read the clock.
class Rate {
 public:
  Rate(const Progress& progress, double whole) : progress_(progress), whole_(whole) {}
  void at(double done) {
    if (!progress_) return;
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

}  // namespace attune::runtime
