// tests/driver/fake_nccl.cpp — a libnccl.so.2 whose ranks are threads of one process, with faults that tests ask for
#include "tests/driver/fake_nccl.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <type_traits>
#include <utility>

using attune::runtime::ranks::NcclComm;
using attune::runtime::ranks::NcclConfig;
using attune::runtime::ranks::NcclId;
using attune::runtime::ranks::NcclResult;
using attune::runtime::ranks::NcclType;

namespace {

/// The ranks of one id: which have joined, and the bytes sent but not received, by sender and receiver.
struct World {
  int count = 0, here = 0, gone = 0;
  std::map<std::pair<int, int>, std::deque<std::string>> sent{};
};
struct Receive {
  int peer;
  void* data;
  std::size_t bytes;
};
struct Operation {
  NcclComm comm;
  bool is_send;
  int peer;
  void* data;
  std::size_t bytes;
};

std::mutex mutex;  // guards what follows
std::map<std::string, std::shared_ptr<World>> worlds;
std::map<int, std::vector<std::string>> said;
std::map<std::string, NcclResult, std::less<>> refused;
std::set<NcclComm> living;
NcclResult reported{};
bool waits_for_all = false;
std::condition_variable one_left;
std::string last_error;
int ids = 0;

thread_local bool in_group = false;
thread_local std::vector<Operation> group;

}  // namespace

struct attune::runtime::ranks::ncclComm {
  std::shared_ptr<World> world;
  int rank, device;
  std::deque<Receive> waiting{};

  /// Takes the bytes that have arrived, in order from each peer.
  bool is_done() {
    for (auto one = waiting.begin(); one != waiting.end();) {
      std::deque<std::string>& from = world->sent[{one->peer, rank}];
      if (from.empty() || from.front().size() != one->bytes) {
        ++one;
        continue;
      }
      std::memcpy(one->data, from.front().data(), one->bytes);
      from.pop_front();
      one = waiting.erase(one);
    }
    return waiting.empty() && world->here == world->count;
  }
};

namespace {

/// Counts a call, with the lock held; what it returns if it is refused, else success.
NcclResult asked(const char* function) {
  const auto found = refused.find(function);
  return found == refused.end() ? NcclResult::success : found->second;
}
NcclResult made(NcclComm* into, const std::shared_ptr<World>& world, int rank, int device) {
  *into = *living.insert(new attune::runtime::ranks::ncclComm{world, rank, device}).first;
  return NcclResult::success;
}
NcclResult ended(NcclComm comm, const char* how, std::unique_lock<std::mutex>& lock) {
  if (!living.erase(comm)) return NcclResult::invalid_argument;
  const std::shared_ptr<World> world = comm->world;
  said[comm->rank].emplace_back(how);
  delete comm;
  ++world->gone;
  one_left.notify_all();
  one_left.wait(lock, [&] { return !waits_for_all || world->gone == world->here; });
  return NcclResult::success;
}
/// `NcclResult result` of the function, which goes on if it is not refused.
#define ATTUNE_ASKED(function)  \
  std::unique_lock lock(mutex); \
  if (const NcclResult result = asked(function); result != NcclResult::success) return result

NcclResult put(const char* function, Operation operation) {
  ATTUNE_ASKED(function);
  if (!in_group || !living.contains(operation.comm)) return NcclResult::invalid_usage;
  said[operation.comm->rank].push_back((operation.is_send ? "send " : "receive ") + std::to_string(operation.bytes) +
                                       (operation.is_send ? " to " : " from ") + std::to_string(operation.peer));
  group.push_back(operation);
  return NcclResult::success;
}

}  // namespace

extern "C" {

NcclResult ncclGetVersion(int* version) {
  *version = 22809;
  return NcclResult::success;
}
NcclResult ncclGetUniqueId(NcclId* id) {
  ATTUNE_ASKED("ncclGetUniqueId");
  std::memset(id, 0, sizeof *id);
  const int number = ++ids;
  std::memcpy(id, &number, sizeof number);
  return NcclResult::success;
}
const char* ncclGetErrorString(NcclResult result) {
  return result == NcclResult::remote_error ? "remote process exited" : "as the test wants it";
}
const char* ncclGetLastError(NcclComm) { return last_error.c_str(); }

NcclResult ncclCommInitRankConfig(NcclComm* comm, int count, NcclId id, int rank, NcclConfig* config) {
  ATTUNE_ASKED("ncclCommInitRankConfig");
  if (config->size < 20 || config->magic != 0xcafebeef || config->blocking != 0) return NcclResult::invalid_argument;
  std::shared_ptr<World>& world = worlds[std::string(reinterpret_cast<const char*>(&id), sizeof id)];
  if (!world) world = std::make_shared<World>(World{count});
  ++world->here;
  made(comm, world, rank, 0);
  return NcclResult::in_progress;
}
NcclResult ncclCommFinalize(NcclComm comm) {
  ATTUNE_ASKED("ncclCommFinalize");
  said[comm->rank].emplace_back("finalize");
  return NcclResult::in_progress;
}
NcclResult ncclCommDestroy(NcclComm comm) {
  ATTUNE_ASKED("ncclCommDestroy");
  return ended(comm, "destroy", lock);
}
NcclResult ncclCommAbort(NcclComm comm) {
  ATTUNE_ASKED("ncclCommAbort");
  return ended(comm, "abort", lock);
}
NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* state) {
  ATTUNE_ASKED("ncclCommGetAsyncError");
  if (!living.contains(comm)) return NcclResult::invalid_argument;
  *state = reported != NcclResult::success ? reported : comm->is_done() ? NcclResult::success : NcclResult::in_progress;
  return NcclResult::success;
}
NcclResult ncclCommCount(NcclComm comm, int* count) {
  ATTUNE_ASKED("ncclCommCount");
  *count = comm->world->count;
  return NcclResult::success;
}
NcclResult ncclCommCuDevice(NcclComm comm, int* device) {
  ATTUNE_ASKED("ncclCommCuDevice");
  *device = comm->device;
  return NcclResult::success;
}
NcclResult ncclCommUserRank(NcclComm comm, int* rank) {
  ATTUNE_ASKED("ncclCommUserRank");
  *rank = comm->rank;
  return NcclResult::success;
}

NcclResult ncclGroupStart() {
  ATTUNE_ASKED("ncclGroupStart");
  if (in_group) return NcclResult::invalid_usage;
  in_group = true;
  return NcclResult::success;
}
NcclResult ncclGroupEnd() {
  const std::vector<Operation> all = std::move(group);
  const bool was_open = std::exchange(in_group, false);
  group.clear();
  ATTUNE_ASKED("ncclGroupEnd");
  if (!was_open) return NcclResult::invalid_usage;
  for (const Operation& one : all)
    if (one.is_send)
      one.comm->world->sent[{one.comm->rank, one.peer}].emplace_back(static_cast<const char*>(one.data), one.bytes);
    else
      one.comm->waiting.push_back({one.peer, one.data, one.bytes});
  return NcclResult::in_progress;
}
NcclResult ncclSend(const void* data, std::size_t bytes, NcclType, int peer, NcclComm comm, void*) {
  return put("ncclSend", {comm, true, peer, const_cast<void*>(data), bytes});
}
NcclResult ncclRecv(void* data, std::size_t bytes, NcclType, int peer, NcclComm comm, void*) {
  return put("ncclRecv", {comm, false, peer, data, bytes});
}
}

#define ATTUNE_NCCL(returns, name, ...) static_assert(std::is_same_v<decltype(&name), returns (*)(__VA_ARGS__)>);
#include "runtime/ranks/transport/nccl.def"
#undef ATTUNE_NCCL

namespace attune::tests::fake_nccl {

std::vector<std::string> calls(int rank) {
  const std::lock_guard lock(mutex);
  return said[rank];
}
void forget() {
  const std::lock_guard lock(mutex);
  said.clear();
}
void refuse(std::string_view function, int result) {
  const std::lock_guard lock(mutex);
  if (result == 0) {
    refused.erase(std::string(function));
  } else {
    refused[std::string(function)] = static_cast<NcclResult>(result);
  }
}
void report(int result) {
  const std::lock_guard lock(mutex);
  reported = static_cast<NcclResult>(result);
}
void wait_for_all(bool wait) {
  const std::lock_guard lock(mutex);
  waits_for_all = wait;
  one_left.notify_all();
}
void say(std::string_view last) {
  const std::lock_guard lock(mutex);
  last_error = last;
}
int live() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(living.size());
}
std::vector<NcclComm> communicators(int count, int device) {
  const std::lock_guard lock(mutex);
  const auto world = std::make_shared<World>(World{count, count});
  std::vector<NcclComm> out(static_cast<std::size_t>(count));
  for (int rank = 0; rank < count; ++rank) made(&out[static_cast<std::size_t>(rank)], world, rank, device);
  return out;
}

}  // namespace attune::tests::fake_nccl
