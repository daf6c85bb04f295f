// runtime/ranks/transport/communicator.h — one rank's exchanges by NCCL: on streams and for the host, each with a time
// limit
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "runtime/engines/cuda/driver.h"
#include "runtime/ranks/transport/nccl.h"
#include <attune/ranks.h>

namespace attune::runtime::ranks {

/// A communicator of NCCL and what ends it. NCCL's own calls do not wait, so that a rank that never comes is an Error
/// after a time limit, never a hang. After an Error every exchange throws it again.
class Communicator {
 public:
  using Parts = std::span<const Transport::Chunk>;

  /// Makes one, together with all other ranks.
  Communicator(const NcclId& id, int rank, int count, int device, double seconds);
  /// Uses one of the caller's, which is never aborted or destroyed here.
  Communicator(NcclComm comm, int device, double seconds);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int count() const { return count_; }
  void exchange(Parts send, Parts receive, void* stream);
  /// This rank gives up: aborts what is under way.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  /// The ranks of one id in this process: NCCL does not tell a rank that another one aborts on the same host.
  struct Group {
    std::atomic<int> stopped{-1};  ///< the first rank that gave up
  };
  /// An exchange on a stream, and when it was first seen to have begun: what the stream does before it takes any time.
  struct Watched {
    cuda::cu::Event begun = nullptr, done = nullptr;
    std::optional<Clock::time_point> since{};
  };
  /// A communicator that is being given back on a thread of its own.
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
  std::shared_ptr<Left> left_{};  ///< once it is given back
  std::optional<Error> over_;     ///< what ended it
  std::deque<Watched> watched_;
  std::vector<cuda::cu::Event> events_;  ///< to be used again
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread watcher_;  ///< only for a communicator of our own: others' are theirs to abort

  // For exchanges of host memory.
  cuda::cu::Stream stream_ = nullptr;
  cuda::cu::Address room_ = 0;
  std::size_t room_bytes_ = 0;
  std::vector<std::byte> packed_;
};

}  // namespace attune::runtime::ranks
