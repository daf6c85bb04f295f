// runtime/ranks/plan/whole.cpp — the inputs of a plan: the checked sizes of the whole call
#include "runtime/ranks/plan/whole.h"

#include <array>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/check.h"

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

}  // namespace attune::runtime::ranks
