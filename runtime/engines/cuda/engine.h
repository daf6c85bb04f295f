// runtime/engines/cuda/engine.h — the CUDA engine: computes checked calls with compiled kernels on a device
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "codegen/choose/call_choices.h"
#include "runtime/engines/engine.h"

namespace attune::runtime::cuda {

/// Bytes of device memory that the call works in. Compiles and loads its kernels.
std::size_t forward_workspace(const Call& call, const Means& means);
std::size_t backward_workspace(const Call& call, const Means& means);
/// Enqueues the call on the stream.
void forward(const Call& call, const Means& means);
void backward(const Call& call, const Means& means);
std::vector<KernelStory> forward_story(const Call& call, const Means& means);
std::vector<KernelStory> backward_story(const Call& call, const Means& means);

inline constexpr Engine engine{.workspace = by_direction<forward_workspace, backward_workspace>,
                               .run = by_direction<forward, backward>,
                               .story = by_direction<forward_story, backward_story>};

/// The forward that a backward without o and lse computes first. Null o, lse and max: only to compute its workspace.
Forward first_forward(const Call& backward, void* o = nullptr, void* lse = nullptr, void* max = nullptr);
/// Enqueues the kernel that writes the tile lists of these forwards, into the workspace if there is one. Null if none
/// are needed.
std::shared_ptr<const detail::DeviceCover> cover(const Call& call, const Means& means);
/// Bytes of device memory that the lists take.
std::size_t cover_bytes(const Call& call, const Means& means);
/// Enqueues the copies of new rows on the stream.
void append(const Append& call, const compiler::Problem& problem, void* stream);
/// The kernel of a forward; compiles and loads it.
codegen::Variant forward_variant(const Call& call, const Means& means);
/// What the kernels of a call are chosen by.
codegen::CallSpec call_spec(const Call& call);
/// The call's sizes that they depend on.
codegen::Sizes sizes_of(const Call& call);

}  // namespace attune::runtime::cuda
