// runtime/engines/cuda/engine.cpp — the entry points of the CUDA engine: enqueue calls on a stream, compute their
// workspace, report their kernels
#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/engines/cuda/backward.h"
#include "runtime/engines/cuda/call.h"
#include "runtime/engines/cuda/consider.h"
#include "runtime/engines/cuda/keys.h"
#include "runtime/engines/cuda/memory.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/cuda/readable_backward.h"

namespace attune::runtime::cuda {
namespace {

using compiler::Problem;

void check_operands(const Backward& call) {
  require_writable("dq", call.dq);
  require_writable("dk", call.dk);
  require_writable("dv", call.dv);
  require_f32_rows("lse", call.lse);
  require_f32_rows("grad_lse", call.grad_lse);
  if (call.grad_o.dtype != call.q.dtype)
    throw Error("engine-type", "the CUDA engine needs grad_o in the type of q", {},
                fmt::format("grad_o holds {}, and q {}", name_of(call.grad_o.dtype), name_of(call.q.dtype)),
                fmt::format("convert grad_o to {}", name_of(call.q.dtype)));
  if (call.o.given() && call.o.dtype == DType::f64)
    throw Error("engine-type", "the CUDA engine does not read o as f64", {}, "it computes in f32",
                "give it elements of f32, or leave out o and lse");
  for (const Backward::Captured& one : call.captured) require_writable("the gradient of a captured tensor", one.into);
}

}  // namespace

std::size_t cover_bytes(const Call& call, const Means& means) {
  check_outputs(call.forward());
  const Problem& p = call.problem;
  if (is_empty(p) || p.q.packed()) return 0;
  const Facts& device = facts(call.forward().q.device.index);
  const Current current(device.index);
  const auto kernel = loaded_kernel(forward_key(device, call, means), call.mod, nullptr, call.purpose);
  if (!kernel->writes_lists()) return 0;
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
  const auto kernel = loaded_kernel(forward_key(device, call, means), call.mod, stream, call.purpose);
  if (!kernel->writes_lists()) return nullptr;
  auto made = std::make_shared<detail::DeviceCover>(device, *kernel, call.mod, call.args, p);
  made->lists = CoverLists(kernel->choice.plan, call.mod.cover, p);
  WorkspaceLayout space;
  const Region<int> region = space.take<int>(made->lists.ints());
  std::byte* const memory =
      means.workspace.empty()
          ? made->take(device, current, space.bytes(), stream).data()
          : checked_workspace(means.workspace, space.bytes(), "Attention::cover_bytes for the call").data();
  made->lists.at = region.in(memory);
  CoverArgs arguments = cover_arguments(made->lists, entries_of(p, nullptr, nullptr), nullptr);
  kernel->used_on(stream);
  Launches launches;
  launches.launch(cover_launch(kernel->lists()->kernel, made->lists, arguments));
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

Forward first_forward(const Call& backward, void* o, void* lse, void* max) {
  const Backward& call = backward.backward();
  const Problem& p = backward.problem;
  const auto shape = std::span(call.grad_o.shape).first(static_cast<std::size_t>(call.grad_o.rank));
  return {.q = call.q,
          .k = call.k,
          .v = call.v,
          // o stays f32, not rounded: deltas are sums of products with o.
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

codegen::CallSpec backward_call_spec(const Call& call) {
  const ReadableBackward readable(call);
  return backward_call_spec(facts(call.backward().q.device.index), readable.call(),
                            captured_of(call.args, call.backward()));
}

std::vector<KernelStory> backward_story(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  const ReadableBackward readable(call);
  std::vector<KernelStory> out;
  for (const auto& kernel : BackwardRun(device, readable.call(), means).walkers()) out.push_back(story_of(*kernel));
  if (readable.bytes() > 0 && !out.empty())
    out.front().notes.push_back(fmt::format(
        "grad_o is copied first, {} bytes: its rows are not contiguous, or not aligned to 16 bytes", readable.bytes()));
  return out;
}

std::size_t backward_workspace(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  const ReadableBackward readable(call);
  readable.load(device, static_cast<cu::Stream>(means.stream));
  return readable.bytes() + BackwardRun(device, readable.call(), means).bytes();
}

void backward(const Call& call, const Means& means) {
  check_operands(call.backward());
  const Facts& device = facts(call.backward().q.device.index);
  const Current current(device.index);
  const auto stream = static_cast<cu::Stream>(means.stream);
  ReadableBackward readable(call);
  BackwardRun run(device, readable.call(), means);
  const std::size_t bytes = readable.bytes() + run.bytes();
  if (means.used) {
    std::string names;
    for (const auto& kernel : run.walkers())
      names += (names.empty() ? "" : " ") + codegen::variant_of(kernel->choice.plan).text();
    *means.used = {target_name(device.arch()), names, bytes};
  }
  const auto put = [&](std::byte* memory) { run.put(readable.copy(device, memory, stream)); };
  if (!means.workspace.empty()) return put(checked_workspace(means.workspace, bytes).data());
  const Pooled own(device, bytes, stream);
  put(own.bytes().data());
}

}  // namespace attune::runtime::cuda
