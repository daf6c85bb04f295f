// runtime/ranks/plan/local.cpp — a call over ranks, checked: the sizes of the whole call, and a rank's part of it
// against the plan
#include "runtime/ranks/plan/local.h"

#include <algorithm>
#include <array>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/check.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime::ranks {
namespace {

Error refuse_call(std::string what, std::string why, std::string fix) {
  return {"sharding-call", fmt::format("calls over ranks do not support {}", what), {}, std::move(why), std::move(fix)};
}

}  // namespace

std::string_view not_over_ranks(const Forward& call) {
  if (call.kv_len.given()) return "kv_len";
  if (call.k.dtype != call.q.dtype) return "keys of another type than q";
  if (call.q_offsets.given()) return "q_offsets";
  if (call.page_table.given()) return "page_table";
  if (call.fixed_split_size != 0) return "fixed_split_size";
  if (call.o_before.given() || call.lse_before.given()) return "o_before";
  if (call.cu_seqlens_q.given() != call.cu_seqlens_kv.given()) return "cu_seqlens_q without cu_seqlens_kv";
  return {};
}

compiler::Problem whole_problem(const Forward& whole) {
  if (const std::string_view what = not_over_ranks(whole); !what.empty())
    throw refuse_call(std::string(what), "a Sharding is made for a call that has it", "leave it out");
  Forward call{.q = whole.q,
               .k = whole.k,
               .v = whole.v,
               .cu_seqlens_q = whole.cu_seqlens_q,
               .cu_seqlens_kv = whole.cu_seqlens_kv,
               .q_offset = whole.q_offset,
               .kv_offset = whole.kv_offset,
               .max_q_len = whole.max_q_len,
               .max_kv_len = whole.max_kv_len};
  for (const Tensor* cu : {&call.cu_seqlens_q, &call.cu_seqlens_kv})
    if (cu->given() && cu->device.kind != Device::Kind::cpu)
      throw refuse_call("cu_seqlens on a device", "the sharding is planned on the host", "pass a copy on the host");
  if (call.q.given() && call.v.given() && call.q.rank > 0 && call.v.rank > 0) {
    const auto rank = static_cast<std::size_t>(call.q.rank);
    Tensor::Extents shape = call.q.shape;
    shape[rank - 1] = call.v.shape[static_cast<std::size_t>(call.v.rank) - 1];
    call.o = Tensor(nullptr, call.q.dtype, std::span(shape).first(rank));
  }
  // Placeholder addresses, which are never read, so far from each other that no tensor reaches another.
  constexpr std::uintptr_t apart = std::uintptr_t{1} << 48;
  std::uintptr_t address = 0;
  for (Tensor* t : {&call.q, &call.k, &call.v, &call.o}) {
    t->data = reinterpret_cast<void*>(address += apart);
    t->device = {};
  }
  return compiler::check(compiler::BoundMod{}, call, {});
}

Sizes sizes_of(const compiler::Problem& p, DType type) {
  return {.batch = p.q.packed() ? 1 : p.batch,
          .kv_batch = p.q.packed() || p.kv_shared ? 1 : p.batch,
          .q_heads = p.q_heads,
          .kv_heads = p.kv_heads,
          .d = p.d,
          .dv = p.dv,
          .element = static_cast<std::int64_t>(size_of(type))};
}

void check_how(const How& how) {
  const auto refuse = [](std::string what, std::string why, std::string fix) {
    return Error("sharding-how", std::move(what), {}, std::move(why), std::move(fix));
  };
  if (how.block < 1)
    throw refuse(fmt::format("a block has {} positions", how.block), "positions are sharded in blocks", "pass 384");
  if (how.groups < 0)
    throw refuse(fmt::format("there are {} groups of key heads", how.groups), "keys travel in one group or more",
                 "pass 0 for the best, or a divisor of the key heads");
  for (const auto& [name, value] : {std::pair{"own_gb_s", how.own_gb_s},
                                    {"node_gb_s", how.node_gb_s},
                                    {"tflops", how.tflops},
                                    {"memory_gb_s", how.memory_gb_s}})
    if (!(value > 0))
      throw refuse(fmt::format("{} is {}", name, value), "predicted times depend on it", "pass a rate above 0");
  if (how.per_node < 1)
    throw refuse(fmt::format("a node has {} ranks", how.per_node), "predicted times depend on it", "pass 1 or more");
}

void check_layers(std::span<const Attention> attentions, std::span<const Forward> wholes) {
  if (attentions.empty())
    throw Error("sharding-call", "a Sharding is made for no attention", {}, "masks decide which rank needs which keys",
                "pass the attentions of the calls");
  if (attentions.size() != wholes.size())
    throw Error("sharding-call",
                fmt::format("a Sharding is made for {} attentions and {} calls", attentions.size(), wholes.size()), {},
                "each call is of one attention", "pass a call for each");
}

void check_count(int count) {
  const auto refuse = [&](std::string why, std::string fix) {
    throw Error("ranks-count", fmt::format("there are {} ranks", count), {}, std::move(why), std::move(fix));
  };
  if (count < 1) refuse("at least one rank has to compute", "pass 1 or more");
  if (count > most_ranks)
    refuse(fmt::format("planning compares every two of them, and the most is {}", most_ranks), "pass fewer");
}

namespace {

using compiler::Problem;

/// Throws the Error `sharding-other`.
Error other(std::string problem, std::string why) {
  return Error("sharding-other", std::move(problem), {}, std::move(why),
               "pass the Sharding that was made from this attention and the whole call");
}

Error shape(std::string_view name, const Tensor& t, std::int64_t rows, int rank) {
  return Error("sharding-shape", fmt::format("{} does not have the rows of rank {}", name, rank), {},
               fmt::format("it is {}, and the rank holds {} positions", t.describe(), rows),
               "pass the rows of Sharding::of, and of keys_of, in their order");
}

/// The starts of packed sequences among the rows of one rank.
std::vector<std::int64_t> local_starts(const Axis& axis, std::span<const int> owners, int rank) {
  std::vector<std::int64_t> out{0};
  for (std::size_t e = 0; e + 1 < axis.firsts.size(); ++e) {
    out.push_back(out.back());
    for (auto g = as_size(axis.firsts[e]); g < as_size(axis.firsts[e + 1]); ++g)
      if (owners[g] == rank) out.back() += axis.blocks[g].rows();
  }
  return out;
}

std::int64_t whole_number(const Tensor& t, std::int64_t i) {
  return static_cast<std::int64_t>(load(t, i * t.strides[0]));
}

void check_starts(std::string_view name, const Tensor& cu, const std::vector<std::int64_t>& starts) {
  if (!cu.given() && starts.empty()) return;
  if (cu.given() && cu.device.kind != Device::Kind::cpu)
    throw Error("sharding-call", fmt::format("calls over ranks do not support {} on a device", name), {},
                "the Sharding was made from starts on the host", "pass those");
  bool same = cu.given() && cu.rank == 1 && cu.shape[0] == std::ssize(starts) &&
              (cu.dtype == DType::i32 || cu.dtype == DType::i64);
  for (std::int64_t i = 0; same && i < std::ssize(starts); ++i) same = whole_number(cu, i) == starts[as_size(i)];
  if (!same)
    throw other(fmt::format("this Sharding is for another {}", name),
                starts.empty() ? "it was made for a dense batch"
                               : fmt::format("it was made for {} packed sequences", starts.size() - 1));
}

std::string_view refused(const Forward& call) { return not_over_ranks(call); }
std::string_view refused(const Backward&) { return {}; }

}  // namespace

const Layer& layer_of(const Plan& plan, const compiler::LoweredMod& lowered, const compiler::Args& args) {
  const auto none = [] {
    return other("this Sharding is for other masks", "none of its attentions has this mask with this data");
  };
  const compiler::CoverOf of = compiler::cover_of(lowered.cover);
  const bool on_device = std::ranges::any_of(
      of.captures, [&](std::uint32_t slot) { return args.captures[slot].device.kind != Device::Kind::cpu; });
  if (!on_device) {
    const MaskOf mask = mask_of(lowered, args);
    for (const Layer& layer : plan.layers)
      if (layer.mask == mask) return layer;
    throw none();
  }
  const Layer* found = nullptr;
  for (const Layer& layer : plan.layers) {
    if (layer.mask.mask != of.mask) continue;
    if (found)
      throw Error("sharding-capture", "two masks of this Sharding differ only in what they capture", {},
                  "this call captures it on a device, where it is not read", "make a Sharding of its own for each");
    found = &layer;
  }
  if (!found) throw none();
  return *found;
}

template <class Call>
Local<Call>::Local(const Plan& plan, const Call& asked) : call_(asked) {
  if (const std::string_view what = refused(asked); !what.empty())
    throw Error("sharding-call", fmt::format("calls over ranks do not support {}", what), {},
                "one rank computes it alone", "leave it out, or call without a Sharding");
  check_starts("cu_seqlens_q", asked.cu_seqlens_q, plan.problem.q.starts);
  check_starts("cu_seqlens_kv", asked.cu_seqlens_kv, plan.problem.kv.starts);
  const int rank = plan.place.rank;
  const std::size_t dimension = plan.problem.q.packed() ? 0 : 2;
  for (const auto& [name, t, rows] : {std::tuple{"q", &asked.q, plan.q_rows(rank)},
                                      {"k", &asked.k, plan.kv_rows(rank)},
                                      {"v", &asked.v, plan.kv_rows(rank)}})
    if (t->given() && t->rank == (plan.problem.q.packed() ? 3 : 4) && t->shape[dimension] != rows)
      throw shape(name, *t, rows, rank);
  if (!plan.problem.q.packed()) return;
  q_starts_ = local_starts(plan.q, plan.owners().q, rank);
  kv_starts_ = local_starts(plan.kv, plan.owners().kv, rank);
  call_.cu_seqlens_q = Tensor(q_starts_.data(), DType::i64, {std::ssize(q_starts_)});
  call_.cu_seqlens_kv = Tensor(kv_starts_.data(), DType::i64, {std::ssize(kv_starts_)});
  call_.max_q_len = call_.max_kv_len = 0;
}

template class Local<Forward>;
template class Local<Backward>;

Problem whole_of(const Plan& plan, const compiler::LoweredMod& lowered, const compiler::Args& args,
                 const Problem& local, DType type) {
  const Problem& whole = plan.problem;
  if (type != plan.dtype)
    throw other("this Sharding is for another type",
                fmt::format("it was made for {}, and q holds {}", name_of(plan.dtype), name_of(type)));
  const auto same = [&](std::string_view what, std::int64_t theirs, std::int64_t here) {
    if (theirs != here)
      throw other("this Sharding is for another call",
                  fmt::format("it has {} {}, and this one {}", theirs, what, here));
  };
  same("batch entries", whole.batch, local.batch);
  same("query heads", whole.q_heads, local.q_heads);
  same("key heads", whole.kv_heads, local.kv_heads);
  same("columns of q and k", whole.d, local.d);
  same("columns of v", whole.dv, local.dv);
  same("as its q_offset", whole.q_offset, local.q_offset);
  same("as its kv_offset", whole.kv_offset, local.kv_offset);
  same("entries of keys", whole.kv_shared ? 1 : whole.batch, local.kv_shared ? 1 : local.batch);
  layer_of(plan, lowered, args);  // refuses a mask that the plan does not have, before any exchange
  Problem out = whole;
  out.scale = local.scale;
  return out;
}

}  // namespace attune::runtime::ranks
