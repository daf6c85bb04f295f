// runtime/engines/cuda/engine.cpp — tile lists that calls share, and the kernels that forwards have
#include "runtime/engines/cuda/engine.h"

#include "runtime/engines/cuda/keys.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/memory.h"
#include "runtime/engines/cuda/operands.h"

namespace attune::runtime::cuda {

using compiler::Problem;

std::size_t cover_bytes(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Problem& p = call.problem;
  if (is_empty(p) || p.q.packed()) return 0;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto kernel = loaded_kernel(forward_key(device, call, means), call.mod, nullptr, call.purpose);
  if (!kernel->writes_lists()) return 0;
  Workspace space;
  space.take<int>(CoverLists(kernel->choice.plan, call.mod.cover, p).ints());
  return space.used();
}

std::shared_ptr<const detail::DeviceCover> cover(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Problem& p = call.problem;
  // The starts of packed sequences come with each call, and their lists with them.
  if (is_empty(p) || p.q.packed()) return nullptr;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  const auto kernel = loaded_kernel(forward_key(device, call, means), call.mod, stream, call.purpose);
  if (!kernel->writes_lists()) return nullptr;
  auto made = std::make_shared<detail::DeviceCover>(device, *kernel, call.mod, call.args, p);
  made->lists = CoverLists(kernel->choice.plan, call.mod.cover, p);
  const std::size_t bytes = cover_bytes(call, means);
  made->lists.at = reinterpret_cast<int*>(
      (means.workspace.empty() ? made->take(device, current, bytes, stream)
                               : checked_workspace(means.workspace, bytes, "Attention::cover_bytes for the call"))
          .data());
  kernel->used_on(stream);
  Launches launches;
  put_cover(launches, *kernel, made->lists, entries_of(p, nullptr, nullptr), nullptr);
  std::vector<std::byte> user = user_of(call, *kernel);
  launches.put(stream, user);
  return made;
}

std::vector<KernelStory> forward_story(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  return {story_of(*loaded_kernel(forward_key(device, call, means), call.mod, nullptr, call.purpose))};
}

codegen::Variant forward_variant(const Call& call, const Means& means) {
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  return codegen::variant_of(
      loaded_kernel(forward_key(device, call, means), call.mod, stream, call.purpose)->choice.plan);
}

KernelWants forward_wants(const Call& call) {
  check_outputs(call.forward());
  const KernelKey key = forward_key(facts(call.forward().q.device.index), call, {});
  const codegen::GpuParts parts = codegen::forward_parts(call.mod, key.spec);
  const codegen::CallKind kind = codegen::call_kind(parts, key.length);
  return {key.spec, parts.facts, kind, tuned_key(facts(key.device).name, key.spec, kind)};
}

}  // namespace attune::runtime::cuda
