// runtime/engines/cuda/streams.h — streams of our own, moments that streams wait for, and copies between devices
#pragma once

#include <memory>

#include "runtime/engines/cuda/driver.h"

namespace attune::runtime::cuda {

/// A point in a stream's work that other streams, of any device, can wait for.
class Moment {
 public:
  Moment() = default;
  /// After all that the stream has been given so far. The stream is of the current context.
  explicit Moment(cu::Stream stream);
  /// What the stream is given from now on runs after this moment. A default moment has passed already.
  void awaited_by(cu::Stream stream) const;
  /// Returns once it has passed.
  void wait() const;
  bool operator==(const Moment&) const = default;

 private:
  std::shared_ptr<void> event_;
};

/// A stream of the current context, which waits for no other and which no other waits for.
class OwnStream {
 public:
  enum class Priority : std::uint8_t { usual, high };
  explicit OwnStream(Priority priority);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cu::Stream get() const { return stream_; }

 private:
  cu::Context context_ = nullptr;
  cu::Stream stream_ = nullptr;
};

/// Runs of equal length, which begin `stride` bytes apart.
struct Runs {
  void* first = nullptr;
  std::size_t bytes = 0;  ///< of each
  std::size_t count = 1, stride = 0;
};
/// Puts a copy on a stream of the current context, for copy engines, which take no multiprocessor: on one H100 whose
/// multiprocessors were all busy, rows of 256 bytes went to another at 358 GB/s, and within it at 870. Both have as
/// many runs, of the same size.
void copy_runs(const Runs& from, const Runs& to, cu::Stream stream);
/// Sets bytes to 0, as a copy.
void clear_bytes(void* first, std::size_t bytes, cu::Stream stream);

/// The context that is current; null: none.
cu::Context current_context();
/// Lets streams of the current context copy from and to memory of another one directly, where the devices allow it;
/// else copies go through the host.
void reach(cu::Context other);

}  // namespace attune::runtime::cuda
