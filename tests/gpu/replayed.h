// tests/gpu/replayed.h — a call captured into a graph, and integers that its replays read
#pragma once

#include <attune/attune.h>

#include <algorithm>
#include <functional>
#include <initializer_list>

#include "runtime/platform/nvidia/driver.h"

namespace attune::tests {

/// A call that a graph has captured.
class Replayed {
 public:
  explicit Replayed(const std::function<void(const Resources&)>& call) {
    call({});  // loads the kernel
    driver().cuStreamCreate(&stream_, runtime::cuda::cu::stream_non_blocking);
    driver().cuStreamBeginCapture(stream_, runtime::cuda::cu::CaptureMode::thread_local_);
    call({.stream = stream_});
    driver().cuStreamEndCapture(stream_, &graph_);
    driver().cuGraphInstantiateWithFlags(&exec_, graph_, 0);
  }
  Replayed(const Replayed&) = delete;
  Replayed& operator=(const Replayed&) = delete;
  ~Replayed() {
    driver().cuGraphExecDestroy(exec_);
    driver().cuGraphDestroy(graph_);
    driver().cuStreamDestroy(stream_);
  }
  void operator()() const {
    driver().cuGraphLaunch(exec_, stream_);
    driver().cuStreamSynchronize(stream_);
  }

 private:
  static const runtime::cuda::Driver& driver() { return runtime::cuda::driver(); }

  runtime::cuda::Current current_{0};
  runtime::cuda::cu::Stream stream_ = nullptr;
  runtime::cuda::cu::Graph graph_ = nullptr;
  runtime::cuda::cu::GraphExec exec_ = nullptr;
};

/// Copies integers into an array on a device.
template <class Integer>
void set(const Array<Integer>& there, std::initializer_list<Integer> values) {
  const auto here = Device::cpu().array<Integer>({static_cast<std::int64_t>(values.size())});
  std::ranges::copy(values, here.data());
  copy(Tensor(here.tensor().data, here.tensor().dtype, {here.tensor().size()}),
       Tensor(there.tensor().data, there.tensor().dtype, {there.tensor().size()}, {}, there.tensor().device));
}

}  // namespace attune::tests
