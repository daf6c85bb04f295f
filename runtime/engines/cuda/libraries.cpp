// runtime/engines/cuda/libraries.cpp — the code of a kernel and its companions on a device: unloaded once nothing can
// run it
#include "runtime/engines/cuda/libraries.h"

#include <memory>
#include <mutex>
#include <utility>

#include "runtime/machine/mutex.h"

namespace attune::runtime::cuda {
namespace {

/// An event after all earlier work of its stream.
class End {
 public:
  explicit End(cu::Stream stream) {
    constexpr unsigned without_timing = 2;
    const Driver& d = driver();
    if (d.cuEventCreate.raw(&event_, without_timing) == cu::Result::success &&
        d.cuEventRecord.raw(event_, stream) == cu::Result::success)
      recorded_ = true;
  }
  ~End() {
    if (event_) driver().cuEventDestroy.raw(event_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  bool recorded() const { return recorded_; }
  bool has_passed() const { return driver().cuEventQuery.raw(event_) == cu::Result::success; }

 private:
  cu::Event event_ = nullptr;
  bool recorded_ = false;
};

struct Waiting {
  const Driver* driver;
  int device;
  unsigned long long stream;
  std::vector<cu::Library> all;
  std::shared_ptr<const End> end{};  ///< null until a stream was given
};
struct AllWaiting {
  Mutex mutex;
  std::vector<Waiting> all;
};
AllWaiting& waiting() {
  static constinit Once<AllWaiting> only;
  return only.get();
}

void unload(const Driver& of, const std::vector<cu::Library>& all) {
  for (const cu::Library one : all) of.cuLibraryUnload.raw(one);
}

unsigned long long number_of(cu::Stream stream) {
  unsigned long long out = 0;
  driver().cuStreamGetId(stream, &out);
  return out;
}

}  // namespace

Libraries::~Libraries() {
  if (stays_) return;
  if (stream_ == none) {
    const DespiteCaptures relaxed;
    unload(driver_, all_);
  } else {
    const std::lock_guard lock(waiting().mutex);
    waiting().all.push_back({&driver_, device_, stream_, std::move(all_)});
  }
}

void Libraries::used_on(cu::Stream stream) {
  if (stays_.load(std::memory_order_relaxed)) return;
  if (capturing(stream)) {
    stays_ = true;
    return;
  }
  const unsigned long long number = number_of(stream);
  unsigned long long before = none;
  if (!stream_.compare_exchange_strong(before, number) && before != number) stays_ = true;
}

void unload_finished(int device, cu::Stream stream) {
  AllWaiting& those = waiting();
  const std::lock_guard lock(those.mutex);
  if (those.all.empty()) return;
  const DespiteCaptures relaxed;
  const unsigned long long number = number_of(stream);
  std::shared_ptr<const End> end;
  for (Waiting& one : those.all) {
    if (one.end || one.device != device || one.stream != number) continue;
    if (!end) end = std::make_shared<const End>(stream);
    if (end->recorded()) one.end = end;
  }
  std::erase_if(those.all, [&](const Waiting& one) {
    if (one.device != device || !one.end || !one.end->has_passed()) return false;
    unload(*one.driver, one.all);
    return true;
  });
}

}  // namespace attune::runtime::cuda
