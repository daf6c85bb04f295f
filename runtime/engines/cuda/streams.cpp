// runtime/engines/cuda/streams.cpp — attune's own streams, events that streams wait for, and copies between devices
#include "runtime/engines/cuda/streams.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/machine/mutex.h"

namespace attune::runtime::cuda {
namespace {

constexpr unsigned without_timing = 2;

cu::Address address(const void* p) { return reinterpret_cast<cu::Address>(p); }

}  // namespace

Moment::Moment(cu::Stream stream) {
  cu::Event event = nullptr;
  driver().cuEventCreate(&event, without_timing);
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

}  // namespace attune::runtime::cuda
