// runtime/engines/emulated/emulated.h — GPUs that are emulated on the host, in place of those of this machine
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attune::runtime::emulated {

struct Gpu {
  int arch = 90;           ///< 80 or 90
  int sms = 4;             ///< multiprocessors; each has a block at a time
  std::uint64_t seed = 1;  ///< of the order in which blocks, warps and copies come
};

/// From now on there is one CUDA device in this process: this one. Calls return once they are computed. Replaces an
/// earlier one of the same architecture.
void emulate(const Gpu& gpu);

/// What emulated kernels of this process did that is wrong unless they do not use what comes of it, the first few;
/// forgets it. Products of nothing are among it: kernels issue some whose results they do not use.
std::vector<std::string> take_doubts();

/// The GPU that a target's name asks for: `emulated:sm_80` or `emulated:sm_90a`, with `:seed=3` and `:sms=2` behind it
/// where it shall have others than these. Throws an Error for a name that there is not.
Gpu gpu_of(std::string_view name);
/// Whether a target's name begins as such names do.
inline bool names_emulated(std::string_view name) { return name.starts_with("emulated"); }

}  // namespace attune::runtime::emulated
