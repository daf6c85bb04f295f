// runtime/platform/emulated/emulated.h — GPUs that are emulated on the host and replace this machine's GPUs
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <attune/error.h>

namespace attune::runtime::emulated {

struct Gpu {
  int arch = 90;           ///< 80 or 90
  int sms = 4;             ///< SMs; each runs one block at a time
  std::uint64_t seed = 1;  ///< seed of the order in which blocks, warps and copies proceed
};

/// From now on this is the only CUDA device in the process. Calls return once they are computed. Replaces an earlier
/// emulated GPU of the same architecture.
void emulate(const Gpu& gpu);

/// While this object lives, the CUDA engine computes the calling thread's calls on an emulated GPU, with tensors in the
/// host's memory.
class Here {
 public:
  explicit Here(const Gpu& gpu);
  ~Here();
  Here(const Here&) = delete;
  Here& operator=(const Here&) = delete;

 private:
  struct On;
  std::unique_ptr<On> on_;
};

/// Returns and forgets the first few doubtful actions of emulated kernels in this process: actions that are wrong if
/// the kernel uses their results. Products of unwritten operands are an example: kernels issue some whose results they
/// do not use.
std::vector<std::string> take_doubts();

/// The GPU of a target's name: `emulated:sm_80` or `emulated:sm_90a`, optionally followed by e.g. `:seed=3` and
/// `:sms=2` to change these. Throws an Error for an unknown name, with the file and line, option or variable that has
/// it.
Gpu gpu_of(std::string_view name, const Place& where = {.name = "--target"});
/// True if a target's name begins like such names.
inline bool names_emulated(std::string_view name) { return name.starts_with("emulated"); }

}  // namespace attune::runtime::emulated
