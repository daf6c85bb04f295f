// runtime/platform/memory.cpp — device memory, streams and events, copies, and times by a device's own clock
#include "runtime/platform/memory.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <utility>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/mutex.h"
#include "runtime/platform/nvidia/driver.h"

namespace attune::runtime::cuda {
namespace {

/// Frees memory in its context. Results of the driver are ignored: at process exit the driver may already be unloaded,
/// and the memory is then gone too.
struct Free {
  cu::Context context;
  void operator()(void* p) const {
    const Driver& d = driver();
    cu::Context popped = nullptr;
    if (d.cuCtxPushCurrent.raw(context) != cu::Result::success) return;
    d.cuMemFree.raw(reinterpret_cast<cu::Address>(p));
    d.cuCtxPopCurrent.raw(&popped);
  }
};

}  // namespace

std::shared_ptr<void> allocate(int device, std::size_t bytes) {
  const Current current(device);
  const Driver& d = driver();
  cu::Address at = 0;
  const cu::Result result = d.cuMemAlloc.raw(&at, bytes);
  if (result == cu::Result::out_of_memory) return nullptr;
  if (result != cu::Result::success) refuse(result, d.cuMemAlloc.name);
  std::shared_ptr<void> memory(reinterpret_cast<void*>(at), Free{current.context()});
  // Waits, because the array may next be used on a stream that does not wait for this one.
  d.cuMemsetD8Async(at, 0, bytes, nullptr);
  d.cuStreamSynchronize(nullptr);
  return memory;
}

void copy(const Tensor& from, const Tensor& to, std::size_t bytes, void* stream) {
  const Tensor& on_device = from.device.kind == Device::Kind::cuda ? from : to;
  const Current current(on_device.device.index);
  const Driver& d = driver();
  const auto on = static_cast<cu::Stream>(stream);
  // The driver derives the location of each side from its address.
  d.cuMemcpyAsync(address(to.data), address(from.data), bytes, on);
  d.cuStreamSynchronize(on);
}

void Pooled::take(const Facts& device, std::size_t bytes) {
  if (!device.pools)
    throw Error("workspace-missing", "the call needs a workspace", {},
                fmt::format("it needs {} bytes, and {} has no stream-ordered memory pools", bytes, device.name),
                "pass a workspace of that many bytes on the device");
  driver().cuMemAllocAsync(&at_, bytes, stream_);
  bytes_ = {reinterpret_cast<std::byte*>(at_), bytes};
}

void Pooled::give_back() { driver().cuMemFreeAsync.raw(at_, stream_); }

bool is_captured(void* stream) { return capturing(static_cast<cu::Stream>(stream)); }

Moment::Moment(cu::Stream stream) {
  cu::Event event = nullptr;
  driver().cuEventCreate(&event, cu::event_without_time);
  // The driver keeps an event for as long as streams wait for it.
  event_ = std::shared_ptr<void>(event, [](void* e) { driver().cuEventDestroy.raw(static_cast<cu::Event>(e)); });
  driver().cuEventRecord(event, stream);
}

void Moment::awaited_by(cu::Stream stream) const {
  if (event_) driver().cuStreamWaitEvent(stream, static_cast<cu::Event>(event_.get()), 0);
}

void Moment::wait() const {
  if (event_) driver().cuEventSynchronize(static_cast<cu::Event>(event_.get()));
}

OwnStream::OwnStream(Priority priority) : context_(current_context()) {
  int least = 0, greatest = 0;
  driver().cuCtxGetStreamPriorityRange(&least, &greatest);
  driver().cuStreamCreateWithPriority(&stream_, cu::stream_non_blocking, priority == Priority::high ? greatest : least);
}

OwnStream::~OwnStream() {
  cu::Context popped = nullptr;
  if (driver().cuCtxPushCurrent.raw(context_) != cu::Result::success) return;
  driver().cuStreamDestroy.raw(stream_);
  driver().cuCtxPopCurrent.raw(&popped);
}

void copy_runs(const Runs& from, const Runs& to, cu::Stream stream) {
  if (from.bytes == 0 || from.count == 0) return;
  const auto run = [](const Runs& of, std::size_t i) { return address(of.first) + i * of.stride; };
  // The driver's limit on the stride between runs.
  constexpr std::size_t most_stride = 0x7fffffff;
  if (from.count == 1 || std::max(from.stride, to.stride) > most_stride) {
    for (std::size_t i = 0; i < from.count; ++i) driver().cuMemcpyAsync(run(to, i), run(from, i), from.bytes, stream);
    return;
  }
  const cu::Copy2D copy{.from = address(from.first),
                        .from_pitch = from.stride,
                        .to = address(to.first),
                        .to_pitch = to.stride,
                        .width = from.bytes,
                        .height = from.count};
  driver().cuMemcpy2DAsync(&copy, stream);
}

void clear_bytes(void* first, std::size_t bytes, cu::Stream stream) {
  if (bytes > 0) driver().cuMemsetD8Async(address(first), 0, bytes, stream);
}

cu::Context current_context() {
  cu::Context out = nullptr;
  driver().cuCtxGetCurrent(&out);
  return out;
}

void reach(cu::Context other) {
  const cu::Context here = current_context();
  if (here == other) return;
  static constinit Mutex mutex;
  const std::lock_guard lock(mutex);
  static auto& known = *new std::set<std::pair<cu::Context, cu::Context>>;
  // The result is ignored: access may already be enabled, and copies also work without it.
  if (known.emplace(here, other).second) driver().cuCtxEnablePeerAccess.raw(other, 0);
}

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
