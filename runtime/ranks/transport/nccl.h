// runtime/ranks/transport/nccl.h — NVIDIA's NCCL, opened by name at first use: its functions, and what its results mean
#pragma once

#include <climits>
#include <cstddef>
#include <span>
#include <string_view>

#include <attune/error.h>

namespace attune::runtime::ranks {

// NCCL's types, as far as they are used. They are declared here so that this builds without NCCL; layouts and numbers
// are those of its ABI.

using NcclComm = struct ncclComm*;
enum class NcclResult : int { success = 0, invalid_argument = 4, invalid_usage = 5, remote_error = 6, in_progress = 7 };
enum class NcclType : int { byte = 1 };
struct NcclId {
  std::byte bytes[128];
};
/// As of version 2.14; later versions take it too, and give what they have added its defaults.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 2'14'00;
  int blocking = 0;
  int undefined = INT_MIN;  ///< what NCCL writes where nothing was chosen
};
static_assert(sizeof(void*) != 8 || sizeof(NcclConfig) == 24);

/// NCCL's functions. None of them is checked here: most say in_progress where they have only begun.
struct Nccl {
#define ATTUNE_NCCL(returns, name, ...) returns (*name)(__VA_ARGS__) = nullptr;
#include "runtime/ranks/transport/nccl.def"
#undef ATTUNE_NCCL
};

/// Takes the functions that this process has, else those of a loaded library of one of the names, else, if `open`,
/// opens the first that can be opened. Throws the Error `nccl` if there is none.
Nccl find_nccl(std::span<const char* const> names, bool open);

/// NCCL, for communicators of our own. Throws the Error `nccl` if there is none.
const Nccl& nccl_to_open();
/// The NCCL that this process has loaded already, for a communicator that it has made. Throws the Error `nccl`.
const Nccl& nccl_loaded();

/// What a result other than success means: `ranks-timeout` if it is another rank's fault, else `nccl`. `comm` may be
/// null.
Error nccl_error(const Nccl& nccl, NcclComm comm, NcclResult result, std::string_view function);

}  // namespace attune::runtime::ranks
