// runtime/engines/cuda/kernels/keys.cpp — the spec that selects a call's kernels: from its tensors, its sizes and its
// device, which need not be in this machine
#include "runtime/engines/cuda/kernels/keys.h"

#include <algorithm>

#include "codegen/ceil_div.h"
#include "codegen/facts/reads.h"
#include "runtime/engines/call.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/cuda/query_tiles.h"

namespace attune::runtime::cuda {

using compiler::Args, compiler::Problem;

codegen::Sizes sizes_of(const Call& of) {
  const Problem &p = of.problem, &whole = of.whole ? *of.whole : p;
  return {.q_len = whole.q.length,
          .group = p.group,
          .page_size = of.is_forward() && p.kv.paged() ? of.forward().k.shape[2] : 0};
}

namespace {

/// The most workspace for keys and values that are copied out of their pages.
constexpr std::int64_t most_gathered = std::int64_t{1} << 30;
std::int64_t gathered_bytes(const Forward& call, const Problem& p) {
  return p.batch * p.kv_heads * p.kv.length * (p.d + p.dv) * static_cast<std::int64_t>(size_of(call.k.dtype));
}

/// True if the call describes its keys separately from its queries: lengths, positions or pages per entry.
bool is_per_entry(const Forward& call, const Problem& p) {
  return p.q.layout != p.kv.layout || p.kv_offset != 0 || call.kv_len.given() || call.q_offsets.given();
}

/// True if tiles of few_rows rows and 128 keys are better split.
bool has_few_tiles(int heads, const Problem& p, const Facts& device, const Means& means) {
  constexpr int n = 128;
  const QueryTiles tiles({.queries = codegen::few_rows / heads, .heads = heads, .persistent = true}, p);
  const int blocks = means.blocks ? std::min(means.blocks, device.sms) : device.sms;
  return codegen::parts_of_keys(tiles.count, blocks, ceil_div(p.kv.length, n)) > 1;
}

/// True if another of the tensor's slots has a gradient too.
bool has_other_terms(const compiler::Mod& mod, const Captured& of, std::uint32_t capture) {
  const auto adds = [&](const compiler::Scatter& term) {
    return term.capture != capture && std::ranges::find(of.slots, term.capture) != of.slots.end();
  };
  return std::ranges::any_of(std::array{&mod.dscore, &mod.dprob, &mod.dsink},
                             [&](const compiler::Derivative* one) { return std::ranges::any_of(one->captures, adds); });
}

/// True if the gradient of a dense bias cannot be made of dS.
bool has_other_extents(const Call& of, std::span<const Captured> captured, const codegen::Wanted& wanted) {
  const std::vector<codegen::DsTerm> terms = codegen::ds_terms(of.mod.mod, wanted);
  return !std::ranges::all_of(
      terms, [&](const codegen::DsTerm& term) { return dense_gradient(of, captured, term).has_value(); });
}

}  // namespace

codegen::CallSpec forward_call_spec(const Facts& device, const Call& of, const Means& means) {
  const Forward& call = of.forward();
  const Problem &p = of.problem, &whole = of.whole ? *of.whole : p;
  const bool mla = codegen::is_mla(p.d, p.dv, compiler::values_within_keys(call.k, call.v));
  // In MLA, TMA loads only q and k.
  const bool tma = has_boxes(call.q) && has_boxes(call.k) && (mla || (has_boxes(call.v) && has_boxes(call.o)));
  codegen::CallSpec out{
      .spec = {.arch = device.arch(),
               .dtype = call.q.dtype,
               .out = call.o.dtype,
               .d = p.d,
               .dv = p.dv,
               .max = call.max.given(),
               .packed = p.q.packed(),
               .cache = {.per_entry = is_per_entry(call, p), .fp8 = call.k.dtype != call.q.dtype, .mla = mla},
               .before = call.o_before.given(),
               .fixed_split = call.fixed_split_size != 0,
               .strides = {.tma = tma,
                           .load = copied_bytes({&call.q, &call.k, &call.v}),
                           .store = stored_bytes(call.o),
                           .offsets64 = codegen::reach_far(of.args.captures)},
               .negative = !(static_cast<float>(p.scale) > 0),
               .exact = codegen::is_exact(of.exact, call.q.dtype)},
      .length = codegen::length_of(whole.q.length, whole.kv.length)};
  codegen::KernelSpec& spec = out.spec;
  codegen::settle(spec, sizes_of(of));
  if (codegen::may_prepare(spec) && spec.cache.paged() && gathered_bytes(call, p) > most_gathered)
    spec.sharing.rows = codegen::QueryRows::few;
  spec.sharing.few_tiles = codegen::may_split_keys(spec) && has_few_tiles(spec.sharing.heads, whole, device, means);
  if (means.preference) out.preference = *means.preference;
  return out;
}

std::vector<Captured> captured_of(const Args& args, const Backward& call) {
  std::vector<Captured> out;
  for (const Backward::Captured& asked : call.captured) {
    if (asked.into.size() == 0) continue;
    Captured one{.into = &asked.into, .slots = {}};
    for (std::uint32_t slot = 0; slot < args.captures.size(); ++slot)
      if (is_of(asked, args, slot)) one.slots.push_back(slot);
    out.push_back(std::move(one));
  }
  return out;
}

codegen::Wanted wanted_of(const Call& of, std::span<const Captured> captured) {
  codegen::Wanted out(of.args.captures.size());
  for (const Captured& one : captured)
    for (const std::uint32_t slot : one.slots) out[slot] = true;
  return out;
}

std::optional<DenseGradient> dense_gradient(const Call& of, std::span<const Captured> captured,
                                            const codegen::DsTerm& term) {
  const compiler::Problem& p = of.problem;
  const auto its = std::ranges::find_if(
      captured, [&](const Captured& one) { return std::ranges::find(one.slots, term.capture) != one.slots.end(); });
  if (its == captured.end() || has_other_terms(of.mod.mod, *its, term.capture)) return {};

  const Tensor& to = *its->into;
  DenseGradient out{
      .of = &*its, .slot = term.capture, .as_pairs = {to.data, to.dtype, {1, 1, 1, 1}, {0, 0, 0, 0}, to.device}};
  out.groups = {std::max(p.batch, std::int64_t{1}), std::max(p.q_heads, std::int64_t{1}), 1, 1};
  for (std::size_t d = 0; d < term.along.size(); ++d) {
    const auto [what, by] = term.along[d];
    if (what == codegen::Along::none) {
      // The other elements along such a dimension are 0; sum_ds.cuh does not write them.
      if (to.shape[d] != 1) return {};
      continue;
    }
    const auto at = static_cast<std::size_t>(what) - 1;
    out.groups[at] = by;
    // Parameters of the whole call: the batch entries and heads before this part's, as Inputs.
    if (const auto whole = of.mod.mod.whole; whole && at < 2)
      out.before[at] = static_cast<std::int64_t>(of.args.params[*whole + at]);
    out.as_pairs.shape[at] = to.shape[d];
    out.as_pairs.strides[at] = to.strides[d];
  }
  const std::array<std::int64_t, 4> pairs{p.batch, p.q_heads, p.q_offset + p.q.length, p.kv.length};
  // Reads beyond a tensor's end are of its last element, which then has the gradients of several pairs.
  for (std::size_t d = 0; d < 4; ++d)
    if (out.as_pairs.shape[d] < ceil_div(out.before[d] + pairs[d], out.groups[d])) return {};
  out.one_each = out.groups[0] == 1 && out.groups[1] == 1 &&
                 std::ranges::equal(pairs, std::span(out.as_pairs.shape).first(pairs.size()));
  return out;
}

codegen::CallSpec backward_call_spec(const Facts& device, const Call& of, std::span<const Captured> captured,
                                     const Means& means) {
  const Backward& call = of.backward();
  const Problem &p = of.problem, &whole = of.whole ? *of.whole : p;
  const auto is_unaligned = [&](std::size_t nth) {
    return nth < of.mod.dense.size() && codegen::has_unaligned_rows(of.args.captures[of.mod.dense[nth]], p.kv.length);
  };
  codegen::CallSpec out{
      .spec = {.arch = device.arch(),
               .dtype = call.q.dtype,
               .out = call.o.given() ? call.o.dtype : DType::f32,
               .d = p.d,
               .dv = p.dv,
               .packed = p.q.packed(),
               .sharing = codegen::sharing_of_backward(device.arch(), p.group),
               .strides = {.tma = has_boxes(call.q) && has_boxes(call.k) && has_boxes(call.v) && has_boxes(call.grad_o),
                           .load = copied_bytes({&call.q, &call.k, &call.v, &call.grad_o}),
                           .offsets64 = codegen::reach_far(of.args.captures),
                           .unaligned_captures = is_unaligned(0),
                           .unaligned_second = is_unaligned(1)},
               .negative = !(static_cast<float>(p.scale) > 0),
               .exact = codegen::is_exact(of.exact, call.q.dtype)},
      .length = codegen::length_of(whole.q.length, whole.kv.length),
      .backward = wanted_of(of, captured)};
  out.other_extents = has_other_extents(of, captured, *out.backward);
  if (means.preference) out.preference = *means.preference;
  return out;
}

}  // namespace attune::runtime::cuda

namespace attune::runtime {

codegen::CallSpec call_spec(const compiler::LoweredMod& lowered, const What& asked, int arch,
                            std::optional<bool> exact) {
  cuda::Facts device;
  device.major = arch / 10;
  device.minor = arch % 10;
  const auto checked = [&](const auto& call) { return compiler::check(lowered, call, {}); };
  const compiler::Problem problem = asked.visit(checked);
  const Call call{.mod = lowered,
                  .args = asked.visit([&](const auto& of) { return compiler::args_of(lowered, of); }),
                  .problem = problem,
                  .what = asked,
                  .exact = exact};
  return call.is_forward() ? cuda::forward_call_spec(device, call, {})
                           : cuda::backward_call_spec(device, call, cuda::captured_of(call.args, call.backward()), {});
}

}  // namespace attune::runtime
