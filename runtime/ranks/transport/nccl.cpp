// runtime/ranks/transport/nccl.cpp — NVIDIA's NCCL, opened by name at first use: its functions, Errors for its results,
// and the transports that it makes

#include <bit>
#include <mutex>
#include <optional>
#include <string>

#include <dlfcn.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/machine/mutex.h"
#include "runtime/machine/placed.h"
#include "runtime/machine/watch/log.h"
#include "runtime/ranks/transport/communicator.h"

namespace attune::runtime::ranks {
namespace {

constexpr const char* library_names[] = {"libnccl.so.2", "libnccl.so"};

/// The functions of a library's handle. `where` describes the library in Errors.
Nccl functions_of(void* handle, std::string_view where) {
  Nccl nccl;
  const auto look_up = [&]<class F>(F*& into, const char* name) {
    into = reinterpret_cast<F*>(dlsym(handle, name));
    if (!into)
      throw Error("nccl", "this NCCL cannot be used", {}, fmt::format("{} has no {}", where, name),
                  "install NCCL 2.14 or newer");
  };
#define ATTUNE_NCCL(returns, name, ...) look_up(nccl.name, #name);
#include "runtime/ranks/transport/nccl.def"
#undef ATTUNE_NCCL
  return nccl;
}

/// Searches until NCCL is found: a library that is missing now may be loaded later.
const Nccl& found_once(bool open) {
  static constinit Mutex mutex;
  const std::lock_guard lock(mutex);
  static std::optional<Nccl>& known = *new std::optional<Nccl>;
  if (!known) known = find_nccl(library_names, open);
  return *known;
}

}  // namespace

Nccl find_nccl(std::span<const char* const> names, bool open) {
  if (dlsym(RTLD_DEFAULT, "ncclGetVersion")) return functions_of(RTLD_DEFAULT, "the NCCL of this process");
  // Libraries stay open: communicators may last until the process ends.
  for (const int how : {RTLD_NOLOAD, 0}) {
    if (how == 0 && !open) break;
    for (const char* name : names)
      if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | how)) return functions_of(handle, name);
  }
  const std::string all = fmt::format("{}", fmt::join(names, ", "));
  if (!open)
    throw Error("nccl", "this process has not loaded NCCL", {}, fmt::format("none of {} is loaded", all),
                "load the library that made the communicator, or pass an id: then attune opens NCCL itself");
  throw Error("nccl", "NCCL cannot be loaded", {}, fmt::format("none of {} can be opened", all),
              "install NCCL where the loader finds it (LD_LIBRARY_PATH), or load it before, as torch does");
}

const Nccl& nccl_to_open() { return found_once(true); }
const Nccl& nccl_loaded() { return found_once(false); }

Error nccl_error(const Nccl& nccl, NcclComm comm, NcclResult result, std::string_view function) {
  const auto text = [](const char* from) { return one_line(from ? from : ""); };
  const std::string last = text(nccl.ncclGetLastError(comm));
  const std::string why = fmt::format("{} returned `{}`{}{}", function, text(nccl.ncclGetErrorString(result)),
                                      last.empty() ? "" : ": ", last);
  if (result == NcclResult::remote_error)
    return {"ranks-timeout",
            "another rank has failed",
            {},
            why,
            "find out what happened to it; then make new transports for all ranks"};
  return {"nccl",
          "NCCL has failed",
          {},
          why,
          "run it with NCCL_DEBUG=INFO for details; then make new transports for all ranks"};
}

}  // namespace attune::runtime::ranks

namespace attune {
namespace {

template <class... A>
Transport transport_by(Line at, A... arguments) {
  return runtime::placed(at, [&] {
    const auto made = std::make_shared<runtime::ranks::Communicator>(arguments...);
    return Transport{.rank = made->rank(),
                     .count = made->count(),
                     .exchange = [made](std::span<const Transport::Chunk> send,
                                        std::span<const Transport::Chunk> receive,
                                        void* stream) { made->exchange(send, receive, stream); },
                     .stop = [made] { made->stop(); }};
  });
}

}  // namespace

std::array<std::byte, 128> nccl_id(Line at) {
  return runtime::placed(at, [] {
    using namespace runtime::ranks;
    const Nccl& nccl = nccl_to_open();
    NcclId id;
    if (const NcclResult result = nccl.ncclGetUniqueId(&id); result != NcclResult::success)
      throw nccl_error(nccl, nullptr, result, "ncclGetUniqueId");
    return std::bit_cast<std::array<std::byte, 128>>(id);
  });
}

Transport nccl(const std::array<std::byte, 128>& id, int rank, int count, int device, double seconds, Line at) {
  runtime::placed(at, [&] {
    if (count < 1 || rank < 0 || rank >= count)
      throw Error("ranks-count", fmt::format("there is no rank {} of {}", rank, count), {},
                  "ranks are numbered from 0 to one less than their count",
                  "pass this rank's number, and how many there are");
  });
  return transport_by(at, std::bit_cast<runtime::ranks::NcclId>(id), rank, count, device, seconds);
}

Transport nccl(void* communicator, int device, double seconds, Line at) {
  return transport_by(at, static_cast<runtime::ranks::NcclComm>(communicator), device, seconds);
}

}  // namespace attune
