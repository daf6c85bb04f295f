// c/called.cpp — a call of C as a Forward or a Backward
#include "c/called.h"

#include <array>

#include <attune/error.h>
#include <fmt/format.h>

#include "c/error.h"
#include "c/tensor.h"

namespace attune::c {
namespace {

void refuse_forward_only(const attune_call& from) {
  const std::array<std::pair<const char*, bool>, 7> given{{{"kv_len", from.kv_len},
                                                           {"q_offsets", from.q_offsets},
                                                           {"page_table", from.page_table},
                                                           {"o_before", from.o_before},
                                                           {"lse_before", from.lse_before},
                                                           {"kv_offset", from.kv_offset != 0},
                                                           {"fixed_split_size", from.fixed_split_size != 0}}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      throw Error("forward-only", fmt::format("a backward is given `{}`", name), {}, "it is for the forward alone",
                  "leave it out");
}

}  // namespace

Call::Call(const attune_attention& attention, const attune_call* given, const char* function) {
  const auto from = c::given(given, function, "call");
  if (from.pass != ATTUNE_FORWARD && from.pass != ATTUNE_BACKWARD)
    throw Error("bad-choice", fmt::format("`pass` cannot be {}", from.pass), {},
                "it is ATTUNE_FORWARD (0) or ATTUNE_BACKWARD (1)", "set it to one of these");
  backward = from.pass == ATTUNE_BACKWARD;
  at = {from.file, from.line};
  captures = captures_of(attention, from.captures, from.n_captures);
  params = params_of(attention, from.params, from.n_params);
  backward ? fill(attention, from, back) : fill(from, forward);
}

template <class Into>
void Call::fill_both(const attune_call& from, Into& into) {
  into.q = tensor_of(from.q, "q");
  into.k = tensor_of(from.k, "k");
  into.v = tensor_of(from.v, "v");
  into.o = tensor_of(from.o, "o");
  into.lse = tensor_of(from.lse, "lse");
  into.cu_seqlens_q = tensor_of(from.cu_q, "cu_q");
  into.cu_seqlens_kv = tensor_of(from.cu_kv, "cu_kv");
  into.q_offset = from.q_offset;
  into.max_q_len = from.max_q_len;
  into.max_kv_len = from.max_kv_len;
  into.captures = captures;
  into.params = params;
}

void Call::fill(const attune_call& from, Forward& into) {
  fill_both(from, into);
  into.max = tensor_of(from.max, "max");
  // Most calls have none of these tensors, and making a Tensor takes nanoseconds.
  const auto take = [](const attune_tensor* given, const char* name, Tensor& tensor) {
    if (given) tensor = tensor_of(given, name);
  };
  take(from.kv_len, "kv_len", into.kv_len);
  take(from.q_offsets, "q_offsets", into.q_offsets);
  take(from.page_table, "page_table", into.page_table);
  take(from.o_before, "o_before", into.o_before);
  take(from.lse_before, "lse_before", into.lse_before);
  into.fixed_split_size = from.fixed_split_size;
  into.kv_offset = from.kv_offset;
}

void Call::fill(const attune_attention& attention, const attune_call& from, Backward& into) {
  refuse_forward_only(from);
  fill_both(from, into);
  into.grad_o = tensor_of(from.grad_o, "grad_o");
  into.grad_lse = tensor_of(from.grad_lse, "grad_lse");
  into.dq = tensor_of(from.dq, "dq");
  into.dk = tensor_of(from.dk, "dk");
  into.dv = tensor_of(from.dv, "dv");
  into.sum_captured = from.own_captured_grads == 0;
  if (!from.captured_grads) return;
  if (from.n_captured_grads != attention.captures.size())
    throw Error("bind-count", fmt::format("the call has {} captured gradients", from.n_captured_grads), {},
                fmt::format("the attention declares {} captures", attention.captures.size()),
                fmt::format("set n_captured_grads to {}: NULL where none is wanted", attention.captures.size()));
  for (std::size_t i = 0; i < attention.captures.size(); ++i) {
    if (!from.captured_grads[i]) continue;
    const Name& name = attention.captures[i];
    if (!name.slot)
      throw Error("grad-not-captured", fmt::format("a gradient is asked for capture `{}`", name.name), {},
                  "no expression reads it", "leave the gradient out: it is 0");
    into.captured.push_back({.of = {},
                             .into = tensor_of(from.captured_grads[i], {"the gradient of capture `", name.name, "`"}),
                             .slot = static_cast<int>(*name.slot)});
  }
}

}  // namespace attune::c
