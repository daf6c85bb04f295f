// runtime/engines/cuda/engine.cpp — the entry points of the CUDA engine: calls put on a stream, counted, told about
#include "runtime/engines/cuda/backward.h"
#include "runtime/engines/cuda/forward.h"

namespace attune::runtime::cuda {

std::size_t forward_workspace(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_outputs(call);
  if (is_empty(p)) return 0;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  return ForwardCall(device, lowered, call, p, means).bytes();
}

void forward(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_outputs(call);
  if (is_empty(p)) return;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  ForwardCall run(device, lowered, call, p, means);
  const std::size_t bytes = run.bytes();
  if (means.used)
    *means.used = {target_name(device.arch()), codegen::variant_of(run.kernel().choice.plan).text(), bytes};
  if (!means.workspace.empty()) return run.put(checked_workspace(means.workspace, bytes).data());
  const Pooled own(device, bytes, static_cast<cu::Stream>(means.stream));
  run.put(own.bytes().data());
}

std::size_t cover_bytes(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_outputs(call);
  if (is_empty(p) || p.q.packed()) return 0;
  const Current current(call.q.device.index);
  const auto kernel = loaded_kernel(key_of(facts(call.q.device.index), lowered, args_of(lowered, call), call, p, means),
                                    lowered, nullptr, means.purpose);
  if (!kernel->cover_kernel) return 0;
  WorkspaceLayout space;
  space.take<int>(CoverLists(kernel->choice.plan, lowered.cover, p).ints());
  return space.bytes();
}

std::shared_ptr<const detail::DeviceCover> cover(const LoweredMod& lowered, const Forward& call, const Problem& p,
                                                 const Means& means) {
  check_outputs(call);
  // The starts of packed sequences come with each call, and their lists with them.
  if (is_empty(p) || p.q.packed()) return nullptr;
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  const Args args = args_of(lowered, call);
  const auto kernel = loaded_kernel(key_of(device, lowered, args, call, p, means), lowered, stream, means.purpose);
  if (!kernel->cover_kernel) return nullptr;
  auto made = std::make_shared<detail::DeviceCover>(device, *kernel, lowered, args, p);
  made->lists = CoverLists(kernel->choice.plan, lowered.cover, p);
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
  std::vector<std::byte> user = user_of(lowered, args, *kernel, p);
  launches.put(stream, user);
  return made;
}

KernelStory forward_story(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  check_outputs(call);
  const Current current(call.q.device.index);
  const auto kernel = loaded_kernel(key_of(facts(call.q.device.index), lowered, args_of(lowered, call), call, p, means),
                                    lowered, nullptr, means.purpose);
  return story_of(*kernel);
}

codegen::Variant forward_variant(const LoweredMod& lowered, const Forward& call, const Problem& p, const Means& means) {
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  const KernelKey key = key_of(device, lowered, args_of(lowered, call), call, p, means);
  return codegen::variant_of(
      loaded_kernel(key, lowered, static_cast<cu::Stream>(means.stream), means.purpose)->choice.plan);
}

KernelWants forward_wants(const LoweredMod& lowered, const Forward& call, const Problem& p, std::optional<bool> exact) {
  check_outputs(call);
  const KernelKey key = key_of(facts(call.q.device.index), lowered, args_of(lowered, call), call, p, {.exact = exact});
  const codegen::GpuParts parts = codegen::forward_parts(lowered, key.spec);
  const codegen::CallKind kind = codegen::call_kind(parts, key.length);
  return {key.spec, parts.facts, kind, tuned_key(key, kind)};
}

Forward first_forward(const Backward& call, const Problem& p, void* o, void* lse, void* max) {
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

BackwardWants backward_wants(const Backward& call, const LoweredMod& lowered, const Problem& p,
                             std::optional<bool> exact) {
  return wants_of(facts(call.q.device.index), args_of(lowered, call), call, p, p, exact);
}

std::vector<KernelStory> backward_stories(const LoweredMod& lowered, const Backward& call, const Problem& p,
                                          const Means& means) {
  check_operands(call);
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  std::vector<KernelStory> out;
  for (const auto& kernel : BackwardCall(device, lowered, call, p, means).walkers()) out.push_back(story_of(*kernel));
  return out;
}

std::size_t backward_workspace(const LoweredMod& lowered, const Backward& call, const Problem& p, const Means& means) {
  check_operands(call);
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  return BackwardCall(device, lowered, call, p, means).bytes();
}

void backward(const LoweredMod& lowered, const Backward& call, const Problem& p, const Means& means) {
  check_operands(call);
  const Facts& device = facts(call.q.device.index);
  const Current current(device.index);
  BackwardCall run(device, lowered, call, p, means);
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
