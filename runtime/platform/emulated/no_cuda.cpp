// runtime/platform/emulated/no_cuda.cpp — GPUs that are emulated in a build without the CUDA engine: there are none
#include <attune/error.h>

#include "runtime/platform/emulated/emulated.h"
#include "runtime/platform/platform.h"

namespace attune::runtime::emulated {

namespace {

[[noreturn]] void refuse() {
  throw Error("no-device", "there is no GPU to emulate", {}, cuda::find_driver().why,
              "build it with ATTUNE_CUDA=ON, or compute on the host: leave the tensors there, and take cpu as target");
}

}  // namespace

void emulate(const Gpu&) { refuse(); }
struct Here::On {};
Here::Here(const Gpu&) { refuse(); }
Here::~Here() = default;
Gpu gpu_of(std::string_view, const Place&) { return {}; }
std::vector<std::string> take_doubts() { return {}; }

}  // namespace attune::runtime::emulated

namespace attune::runtime::cuda {

const Platform& emulated_platform(const std::string&) { return nvidia(); }

}  // namespace attune::runtime::cuda
