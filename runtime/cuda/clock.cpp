// runtime/cuda/clock.cpp — times launches by the device's own clock
#include <chrono>

#include "runtime/cuda/driver.h"
#include "runtime/cuda/engine.h"

namespace attune::runtime::cuda {
namespace {

class Mark {
 public:
  Mark() { driver().cuEventCreate(&event_, 0); }
  ~Mark() {
    if (event_) driver().cuEventDestroy.raw(event_);
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  void set() const { driver().cuEventRecord(event_, nullptr); }
  void wait() const { driver().cuEventSynchronize(event_); }
  double seconds_since(const Mark& before) const {
    float milliseconds = 0;
    driver().cuEventElapsedTime(&milliseconds, before.event_, event_);
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cu::Event event_ = nullptr;
};

}  // namespace

std::string device_name(int device) { return facts(device).name; }

std::vector<double> times(int device, double seconds, const std::function<void()>& launch) {
  const Current current(device);
  // An idle device runs at a low clock; the first round warms it up and is not counted.
  constexpr std::size_t round = 20;
  const std::vector<Mark> marks(round + 1);
  std::vector<double> out;
  for (double sum = 0; sum < seconds || out.empty();) {
    const bool warm = !out.empty() || sum > 0;
    marks[0].set();
    for (std::size_t i = 1; i <= round; ++i) {
      launch();
      marks[i].set();
    }
    marks[round].wait();
    sum += marks[round].seconds_since(marks[0]);
    for (std::size_t i = 1; i <= round && warm; ++i) out.push_back(marks[i].seconds_since(marks[i - 1]));
  }
  return out;
}

}  // namespace attune::runtime::cuda
