// runtime/attention/watched.h — reports a call to callbacks and checks it: ATTUNE_VERIFY, ATTUNE_CHECK=range, missing
// pages; a device's tensors are copied first
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/attention/bind.h"
#include "runtime/engines/oracle/verify.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/watch.h"
#include "runtime/platform/memory.h"

namespace attune::runtime {

/// Copies of a call's tensors, which live as long as this object.
class OnHost {
 public:
  explicit OnHost(void* stream) : stream_(stream) {}

  Tensor operator()(const Tensor& t) {
    if (!t.given() || t.device.kind == Device::Kind::cpu || t.size() == 0) return t;
    std::int64_t low = 0, high = 0;  // elements before and after the first one
    for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
      const std::int64_t reach = (t.shape[d] - 1) * t.strides[d];
      (reach < 0 ? low : high) += reach;
    }
    const std::size_t size = size_of(t.dtype), bytes = static_cast<std::size_t>(high - low + 1) * size;
    memory_.emplace_back(bytes);
    const auto all = static_cast<std::int64_t>(bytes);
    std::byte* first = static_cast<std::byte*>(t.data) + low * static_cast<std::int64_t>(size);
    cuda::copy(Tensor(first, DType::u8, {all}, {}, t.device), Tensor(memory_.back().data(), DType::u8, {all}), bytes,
               stream_);
    Tensor out = t;
    out.device = Device::cpu();
    out.data = memory_.back().data() - low * static_cast<std::int64_t>(size);
    return out;
  }
  template <class... Tensors>
  void take(Tensors&... all) {
    ((all = (*this)(all)), ...);
  }

 private:
  void* stream_;
  std::vector<std::vector<std::byte>> memory_;
};

/// `stream`: the stream of a call on a device; verify waits for it.
void verify(const Call& call, const Verified& which, void* stream);

/// Refuses a call on the host that needs a page that does not exist. With ATTUNE_CHECK=range it also refuses host calls
/// that read outside of captured tensors, and device calls that need missing pages; for those it waits for `stream`.
void refuse_outside(const Checked& checked, void* stream);

/// Reports a call to callbacks, and verifies some of its rows if ATTUNE_VERIFY is set.
class Watched {
 public:
  explicit Watched(Line at) : at_(at), watched_(wants(Fact::called)), verifies_(options().verify > 0) {
    if (watched_) clock_.emplace();
  }
  /// For the engine to fill in; null where it is not needed.
  Used* used() { return watched_ || verifies_ ? &used_ : nullptr; }

  enum class Whole : std::uint8_t { no, yes };
  /// `whole`: yes if this program has all rows of the call.
  void done(const Checked& checked, void* stream, Whole whole = Whole::yes) {
    if (watched_ || verifies_) report(checked, stream, whole);
  }

 private:
  void report(const Checked& checked, void* stream, Whole whole);

  Line at_;
  bool watched_, verifies_;
  std::optional<Clock> clock_;
  Used used_;
};

}  // namespace attune::runtime
