// runtime/engines/cuda/engine.cpp — the entry points of the CUDA engine: calls put on a stream, counted, told about
#include "runtime/engines/cuda/backward.h"
#include "runtime/engines/cuda/forward.h"

namespace attune::runtime::cuda {

std::size_t forward_workspace(const Call& call, const Means& means) {
  check_outputs(call.forward());
  if (is_empty(call.problem)) return 0;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  return ForwardCall(device, call, means).bytes();
}

void forward(const Call& call, const Means& means) {
  check_outputs(call.forward());
  if (is_empty(call.problem)) return;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  ForwardCall run(device, call, means);
  const std::size_t bytes = run.bytes();
  if (means.used)
    *means.used = {target_name(device.arch()), codegen::variant_of(run.kernel().choice.plan).text(), bytes};
  if (!means.workspace.empty()) return run.put(checked_workspace(means.workspace, bytes).data());
  const Pooled own(device, bytes, static_cast<cu::Stream>(means.stream));
  run.put(own.bytes().data());
}

std::size_t cover_bytes(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Problem& p = call.problem;
  if (is_empty(p) || p.q.packed()) return 0;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto kernel = loaded_kernel(key_of(device, call, means), call.mod, nullptr, call.purpose);
  if (!kernel->cover_kernel) return 0;
  WorkspaceLayout space;
  space.take<int>(CoverLists(kernel->choice.plan, call.mod.cover, p).ints());
  return space.bytes();
}

std::shared_ptr<const detail::DeviceCover> cover(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Problem& p = call.problem;
  // The starts of packed sequences come with each call, and their lists with them.
  if (is_empty(p) || p.q.packed()) return nullptr;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  const auto kernel = loaded_kernel(key_of(device, call, means), call.mod, stream, call.purpose);
  if (!kernel->cover_kernel) return nullptr;
  auto made = std::make_shared<detail::DeviceCover>(device, *kernel, call.mod, call.args, p);
  made->lists = CoverLists(kernel->choice.plan, call.mod.cover, p);
  WorkspaceLayout space;
  const Room<int> room = space.take<int>(made->lists.ints());
  std::byte* const memory =
      means.workspace.empty()
          ? made->take(device, current, space.bytes(), stream).data()
          : checked_workspace(means.workspace, space.bytes(), "Attention::cover_bytes for the call").data();
  made->lists.at = room.in(memory);
  CoverArgs arguments = cover_arguments(made->lists, p, {}, nullptr);
  Launches launches;
  launches.launch(cover_launch(kernel->cover_kernel->kernel, made->lists, arguments));
  std::vector<std::byte> user = user_of(call.mod, call.args, *kernel, p);
  launches.put(stream, user);
  return made;
}

std::vector<KernelStory> forward_story(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  return {story_of(*loaded_kernel(key_of(device, call, means), call.mod, nullptr, call.purpose))};
}

codegen::Variant forward_variant(const Call& call, const Means& means) {
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  return codegen::variant_of(loaded_kernel(key_of(device, call, means), call.mod, stream, call.purpose)->choice.plan);
}

KernelWants forward_wants(const Call& call) {
  check_outputs(call.forward());
  const KernelKey key = key_of(facts(call.forward().q.device.index), call, {});
  const codegen::GpuParts parts = codegen::forward_parts(call.mod, key.spec);
  const codegen::CallKind kind = codegen::call_kind(parts, key.length);
  return {key.spec, parts.facts, kind, tuned_key(key, kind)};
}

Forward first_forward(const Call& backward, void* o, void* lse, void* max) {
  const Backward& call = backward.backward();
  const Problem& p = backward.problem;
  const auto shape = std::span(call.grad_o.shape).first(static_cast<std::size_t>(call.grad_o.rank));
  return {.q = call.q,
          .k = call.k,
          .v = call.v,
          // Not rounded: deltas are sums of its products.
          .o = Tensor(o, DType::f32, shape, {}, call.q.device),
          .lse = rows_of(call, p, lse),
          .max = rows_of(call, p, max),
          .cu_seqlens_q = call.cu_seqlens_q,
          .cu_seqlens_kv = call.cu_seqlens_kv,
          .q_offset = call.q_offset,
          .max_q_len = call.max_q_len,
          .max_kv_len = call.max_kv_len,
          .captures = call.captures,
          .params = call.params};
}

BackwardWants backward_wants(const Call& call) { return wants_of(facts(call.backward().q.device.index), call); }

std::vector<KernelStory> backward_story(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  std::vector<KernelStory> out;
  for (const auto& kernel : BackwardCall(device, call, means).walkers()) out.push_back(story_of(*kernel));
  return out;
}

std::size_t backward_workspace(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  return BackwardCall(device, call, means).bytes();
}

void backward(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  BackwardCall run(device, call, means);
  const std::size_t bytes = run.bytes();
  if (means.used) {
    std::string names;
    for (const auto& kernel : run.walkers())
      names += (names.empty() ? "" : " ") + codegen::variant_of(kernel->choice.plan).text();
    *means.used = {target_name(device.arch()), names, bytes};
  }
  if (!means.workspace.empty()) return run.put(checked_workspace(means.workspace, bytes).data());
  const Pooled own(device, bytes, static_cast<cu::Stream>(means.stream));
  run.put(own.bytes().data());
}

}  // namespace attune::runtime::cuda
