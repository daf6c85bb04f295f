// runtime/ranks/transport/communicator.h — one rank's exchanges by NCCL: on streams and for the host, each with a time
// limit
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include <attune/error.h>
#include <attune/ranks.h>

#include "runtime/platform/nvidia/driver.h"

namespace attune::runtime::ranks {

// NCCL's types, as far as they are used. They are declared here so that attune builds without NCCL; layouts and numbers
// follow NCCL's ABI.

using NcclComm = struct ncclComm*;
enum class NcclResult : int { success = 0, invalid_argument = 4, invalid_usage = 5, remote_error = 6, in_progress = 7 };
enum class NcclType : int { byte = 1 };
struct NcclId {
  std::byte bytes[128];
};
/// The layout of version 2.14. Later versions accept it, and use defaults for members that they have added.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 2'14'00;
  int blocking = 0;
  int undefined = INT_MIN;  ///< NCCL's value for "not set"
};
static_assert(sizeof(void*) != 8 || sizeof(NcclConfig) == 24);

/// NCCL's functions. Results are not checked here: most functions return in_progress when they have only begun.
struct Nccl {
#define ATTUNE_NCCL(returns, name, ...) returns (*name)(__VA_ARGS__) = nullptr;
#include "runtime/ranks/transport/nccl.def"
#undef ATTUNE_NCCL
};

/// Uses the functions that this process already has, else a loaded library with one of the names, else, if `open`, the
/// first library that can be opened. Throws the Error `nccl` if there is none.
Nccl find_nccl(std::span<const char* const> names, bool open);

/// NCCL for communicators that attune makes. Throws the Error `nccl` if there is none.
const Nccl& nccl_to_open();
/// The NCCL that this process has already loaded, for a communicator that the process has made. Throws the Error `nccl`
/// if there is none.
const Nccl& nccl_loaded();

/// The Error for a result other than success: `ranks-timeout` if another rank caused it, else `nccl`. `comm` may be
/// null.
Error nccl_error(const Nccl& nccl, NcclComm comm, NcclResult result, std::string_view function);

/// An NCCL communicator with a time limit. NCCL's own calls are non-blocking, so a rank that never arrives causes an
/// Error after the time limit, never a hang. After an Error every exchange throws it again.
class Communicator {
 public:
  using Parts = std::span<const Transport::Chunk>;

  /// Makes a communicator, together with all other ranks.
  Communicator(const NcclId& id, int rank, int count, int device, double seconds);
  /// Uses the caller's communicator, which is never aborted or destroyed here.
  Communicator(NcclComm comm, int device, double seconds);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int count() const { return count_; }
  void exchange(Parts send, Parts receive, void* stream);
  /// Called if this rank fails: aborts running exchanges.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  /// The ranks of one id in this process, needed because NCCL does not report an abort to another rank on the same
  /// host.
  struct Group {
    std::atomic<int> stopped{-1};  ///< the first rank that failed; -1: none
  };
  /// An exchange on a stream, and the time at which it was first seen to have begun: earlier work of the stream may
  /// take any time.
  struct Watched {
    cuda::cu::Event begun = nullptr, done = nullptr;
    std::optional<Clock::time_point> since{};
  };
  /// A communicator that a separate thread is destroying or aborting.
  struct Left {
    std::mutex mutex{};
    std::condition_variable changed{};
    bool is_done = false;
  };

  static std::shared_ptr<Group> group_of(const NcclId& id);
  Clock::time_point limit() const;
  Error late(std::string_view what) const;
  void wait_to_begin();

  void on_stream(Parts send, Parts receive, cuda::cu::Stream stream);
  void on_host(Parts send, Parts receive);
  void start(Parts send, Parts receive, cuda::cu::Stream stream);
  template <class Done>
  void wait(const Done& done);

  // With mutex_ held.
  void require_going();
  NcclResult state();
  void end(const Error& error);
  void leave(NcclResult (*how)(NcclComm));
  [[noreturn]] void fail(const Error& error);
  void check(NcclResult result, const char* function);
  void look_at_watched();
  cuda::cu::Event event();

  void watch();
  void close();

  const Nccl& nccl_;
  const bool own_;
  int rank_ = 0, count_ = 1;
  const int device_;
  const double seconds_;
  cuda::cu::Context context_ = nullptr;
  std::shared_ptr<Group> group_;
  std::mutex one_call_;

  std::mutex mutex_;  ///< guards what follows
  NcclComm comm_ = nullptr;
  std::shared_ptr<Left> left_{};  ///< set once it is being destroyed or aborted
  std::optional<Error> over_;     ///< the Error that ended it
  std::deque<Watched> watched_;
  std::vector<cuda::cu::Event> events_;  ///< events for reuse
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread watcher_;  ///< only for a communicator that attune made: the caller aborts its own

  // For exchanges of host memory.
  cuda::cu::Stream stream_ = nullptr;
  cuda::cu::Address room_ = 0;
  std::size_t room_bytes_ = 0;
  std::vector<std::byte> packed_;
};

}  // namespace attune::runtime::ranks
