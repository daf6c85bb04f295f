// runtime/engines/cuda/no_cuda.cpp — devices and the CUDA engine's calls in a build without CUDA: each throws an Error
#include <attune/error.h>

#include "runtime/engines/cuda/engine.h"
#include "runtime/platform/memory.h"
#include "runtime/platform/nvidia/driver.h"

namespace attune::runtime::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error("no-device", "there is no GPU to compute on", {}, find_driver().why,
              "build it with ATTUNE_CUDA=ON, or compute on the host: leave the tensors there, and take cpu as target");
}

}  // namespace

const Found& find_driver() { return find_nvidia_driver(); }
const Found& find_nvidia_driver() {
  static const Found none{std::nullopt, "attune was built with ATTUNE_CUDA=OFF"};
  return none;
}
const Driver& find_or_refuse_driver() { refuse(); }
void refuse(cu::Result, const char*) { refuse(); }
std::shared_ptr<void> allocate(int, std::size_t) { refuse(); }
void copy(const Tensor&, const Tensor&, std::size_t, void*) { refuse(); }
bool is_captured(void*) { refuse(); }
std::size_t forward_workspace(const Call&, const Means&) { refuse(); }
std::size_t backward_workspace(const Call&, const Means&) { refuse(); }
void forward(const Call&, const Means&) { refuse(); }
void backward(const Call&, const Means&) { refuse(); }
std::vector<KernelStory> forward_story(const Call&, const Means&) { refuse(); }
std::vector<KernelStory> backward_story(const Call&, const Means&) { refuse(); }
Forward first_forward(const Call&, void*, void*, void*) { refuse(); }
std::shared_ptr<const detail::DeviceCover> cover(const Call&, const Means&) { refuse(); }
std::size_t cover_bytes(const Call&, const Means&) { refuse(); }
codegen::Variant forward_variant(const Call&, const Means&) { refuse(); }
codegen::CallSpec call_spec(const Call&) { refuse(); }
void append(const Append&, const compiler::Problem&, void*) { refuse(); }
int device_count() { return 0; }
const Facts& facts(int) { refuse(); }
std::string device_name(int) { refuse(); }
std::vector<double> times(int, double, const std::function<void()>&) { refuse(); }
std::vector<double> times_of_graphs(int, double, int, const std::function<void(void*)>&) { refuse(); }

Current::Current(int) { refuse(); }
Current::~Current() = default;
Moment::Moment(cu::Stream) { refuse(); }
void Moment::awaited_by(cu::Stream) const { refuse(); }
void Moment::wait() const { refuse(); }
void copy_runs(const Runs&, const Runs&, cu::Stream) { refuse(); }
cu::Context current_context() { refuse(); }
void reach(cu::Context) { refuse(); }
}  // namespace attune::runtime::cuda
