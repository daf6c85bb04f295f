// runtime/engines/cuda/clock.cpp — times launches by the device's own clock
#include <chrono>

#include "runtime/engines/cuda/driver.h"
#include "runtime/engines/cuda/engine.h"

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

  void set(cu::Stream stream = nullptr) const { driver().cuEventRecord(event_, stream); }
  void wait() const { driver().cuEventSynchronize(event_); }
  double seconds_since(const Mark& before) const {
    float milliseconds = 0;
    driver().cuEventElapsedTime(&milliseconds, before.event_, event_);
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cu::Event event_ = nullptr;
};

/// A graph of launches in a row, and the stream that it is replayed on.
class Replay {
 public:
  Replay(int launches, const std::function<void(void*)>& launch) {
    driver().cuStreamCreate(&stream_, cu::stream_non_blocking);
    launch(stream_);
    driver().cuStreamSynchronize(stream_);
    driver().cuStreamBeginCapture(stream_, cu::CaptureMode::thread_local_);
    for (int i = 0; i < launches; ++i) launch(stream_);
    driver().cuStreamEndCapture(stream_, &graph_);
    driver().cuGraphInstantiateWithFlags(&exec_, graph_, 0);
  }
  ~Replay() {
    if (exec_) driver().cuGraphExecDestroy.raw(exec_);
    if (graph_) driver().cuGraphDestroy.raw(graph_);
    if (stream_) driver().cuStreamDestroy.raw(stream_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  cu::Stream stream() const { return stream_; }
  void launch() const { driver().cuGraphLaunch(exec_, stream_); }

 private:
  cu::Stream stream_ = nullptr;
  cu::Graph graph_ = nullptr;
  cu::GraphExec exec_ = nullptr;
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

std::vector<double> times_of_graphs(int device, double seconds, int launches,
                                    const std::function<void(void*)>& launch) {
  const Current current(device);
  const Mark begin, end;
  const Replay graph(launches, launch);
  std::vector<double> out;
  graph.launch();
  for (double sum = 0; sum < seconds || out.empty(); sum += out.back() * launches) {
    begin.set(graph.stream());
    graph.launch();
    end.set(graph.stream());
    end.wait();
    out.push_back(end.seconds_since(begin) / launches);
  }
  return out;
}

}  // namespace attune::runtime::cuda
