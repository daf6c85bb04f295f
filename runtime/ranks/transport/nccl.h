// runtime/ranks/transport/nccl.h — NVIDIA's NCCL, opened by name at first use: its functions, and Errors for its
// results
#pragma once

#include <climits>
#include <cstddef>
#include <span>
#include <string_view>

#include <attune/error.h>

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

}  // namespace attune::runtime::ranks
