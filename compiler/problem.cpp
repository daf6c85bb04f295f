// compiler/problem.cpp — refuses a call whose tensors do not fit together, and computes its sizes
#include "compiler/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>

#include <fmt/format.h>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "compiler/requirements.h"
#include "compiler/sequences.h"

namespace attune::compiler {
namespace {

bool is_float(DType type) { return type_of(type) == ir::Type::F32; }

void check_types(const Inputs& in) {
  const bool forward = in.forward;
  for (const Named& t : {in.q, in.k, in.v})
    if (!forward && t->dtype == DType::e4m3)
      throw refuse("tensor-type", fmt::format("{} holds e4m3", t.name()),
                   fmt::format("{}, and {} of e4m3 have no gradients", description(t),
                               in.q->dtype == DType::e4m3 ? "queries, keys and values" : "keys and values"),
                   in.q->dtype == DType::e4m3
                       ? "convert q, k and v to one other type before the forward, or ask for no gradients"
                       : "convert k and v to the type of q before the forward, or ask for no gradients");
  const Types& wanted = forward ? types::floats_or_e4m3 : types::floats;
  check_type(in.q, wanted);
  // A cache may have narrower elements than the queries: FP8 (E4M3).
  const bool narrow = forward && in.k->dtype == DType::e4m3;
  for (const Named& t : {in.k, in.v}) {
    check_type(t, wanted);
    if (!in.one_type) continue;
    if (const Named& as = narrow ? in.k : in.q; t->dtype != as->dtype)
      throw refuse("tensor-types", fmt::format("{} and {} hold different types", as.name(), t.name()),
                   fmt::format("{} and {}", description(as), description(t)),
                   forward ? "convert q, k and v to one type, or k and v both to e4m3"
                           : "convert q, k and v to one type");
  }
}

/// Checks heads and widths, whose dimensions do not depend on the tensors being dense or packed.
void check_heads(const Inputs& in, Problem& p) {
  const std::size_t heads = 1, width = p.kv.packed() ? 2 : 3;
  p.q_heads = in.q->shape[heads];
  p.kv_heads = in.k->shape[heads];
  p.d = in.q->shape[p.q.packed() ? 2 : 3];
  p.dv = in.v->shape[width];
  if (in.k->shape[width] != p.d)
    throw refuse(
        "head-size", fmt::format("{} and k have rows of different lengths", in.q.name()),
        fmt::format("{} and {}: D is {} and {}", description(in.q), description(in.k), p.d, in.k->shape[width]),
        fmt::format("give {} and k the same last dimension", in.q.name()));
  if (p.d == 0 || p.dv == 0) {
    const Named& empty = p.d == 0 ? in.q : in.v;
    throw refuse("head-size-zero", fmt::format("{} has rows without elements", empty.name()),
                 fmt::format("{}: its last dimension is 0", description(empty)), "give each row at least one element");
  }
  check_shared(in.k, in.v, shared::kv_heads);
  if (p.kv_heads == 0 ? p.q_heads != 0 : p.q_heads % p.kv_heads != 0)
    throw uneven_heads(p.q_heads, p.kv_heads, {}, fmt::format("{} and {}: ", description(in.q), description(in.k)),
                       "make the heads of q a multiple of those of k and v");
  p.group = p.kv_heads ? p.q_heads / p.kv_heads : 1;
}

void check_dense_q(const Inputs& in, Problem& p) {
  p.batch = in.q->shape[0];
  p.q.length = in.q->shape[2];
}

void check_dense_kv(const Inputs& in, Problem& p) {
  p.kv.length = in.k->shape[2];
  check_shared(in.k, in.v, shared::kv_lengths);
  check_shared(in.k, in.v, shared::kv_batch);
  if (in.k->shape[0] != p.batch && in.k->shape[0] != 1)
    throw refuse("batch", fmt::format("{} and k have different batch sizes", in.q.name()),
                 fmt::format("{} and {}", description(in.q), description(in.k)),
                 fmt::format("give k and v {} batch entries, or 1 for all of {}'s to share", p.batch, in.q.name()));
  p.kv_shared = in.k->shape[0] != p.batch;
}

/// Returns the rows of a page.
std::int64_t check_pages(const Inputs& in, Problem& p) {
  check_shared(in.k, in.v, shared::kv_pages);
  const std::int64_t page_size = in.k->shape[2];
  p.entries().page_size = page_size;
  check_shared(in.k, in.v, shared::page_size);
  if (page_size == 0)
    throw refuse("page-size", "pages have no rows", fmt::format("{}: [pages, H, page_size, D]", description(in.k)),
                 "give each page at least one row");
  return page_size;
}

void check_paged_kv(const Inputs& in, Problem& p) {
  const Named page_table{"page_table", &in.forward->page_table};
  check_one(page_table, in.q->device, in.q.called);
  check_type(page_table, types::page_table);
  if (page_table->rank != 2 || page_table->shape[0] != p.batch)
    throw refuse("page-table", "page_table has the wrong shape",
                 fmt::format("{}, and {} has {} entries", description(page_table), in.q.name(), p.batch),
                 fmt::format("pass page_table as [{}, n]: the pages of each entry, in the order of its keys", p.batch));
  const std::int64_t page_size = check_pages(in, p), n = page_table->shape[1];
  p.kv.length = n == 0 ? 0 : std::min(page_size, std::numeric_limits<std::int64_t>::max() / n) * n;
}

void check_positions(const Inputs& in, const Problem& p, std::int32_t q_offset) {
  if (in.q_offset < 0)
    throw refuse("q-offset", fmt::format("q_offset is {}", in.q_offset), "positions start at 0",
                 "pass the position of the first query, 0 or more");
  const auto beyond = [](const std::string& what, std::int64_t count) {
    return refuse(
        "too-long", fmt::format("{} exceeds the range of a coordinate", what),
        fmt::format("{} is {}, and coordinates stay below {} so that their sums fit an i32", what, count, max_length),
        "split the call");
  };
  if (p.batch > max_length) throw beyond("the batch", p.batch);
  if (p.q_heads > max_length) throw beyond("the number of heads", p.q_heads);
  if (p.kv.length > max_length) throw beyond("the length of k and v", p.kv.length);
  if (p.kv.length + p.kv_offset > max_length)
    throw beyond("kv_offset plus the length of k and v", p.kv.length + p.kv_offset);
  if (p.q.length + q_offset > max_length)
    throw beyond(p.has_q_offsets() ? "the largest of q_offsets plus the length of q" : "q_offset plus the length of q",
                 p.q.length + q_offset);
}

const Dimensions& dimensions_of(const Positions& of) {
  return of.packed() ? dimensions::packed : of.paged() ? dimensions::paged : dimensions::dense;
}

Problem check_inputs(const Inputs& in, std::optional<double> scale) {
  check_scale(scale);
  Problem p;
  p.q.layout = in.cu_q->given() ? Layout::packed : Layout::dense;
  p.kv.layout = in.paged() ? Layout::paged : in.cu_kv->given() ? Layout::packed : Layout::dense;
  if (in.paged() && in.cu_kv->given())
    throw refuse("page-table", "page_table and cu_seqlens_kv are both given", "k and v are either paged or packed",
                 "pass one of them");
  if (p.q.packed() != p.kv.packed() && !in.mixed())
    throw refuse("cu-seqlens-half",
                 fmt::format("{} is given without {}", p.q.packed() ? "cu_seqlens_q" : "cu_seqlens_kv",
                             p.q.packed() ? "cu_seqlens_kv" : "cu_seqlens_q"),
                 "q, k and v are packed together or not at all",
                 "pass both for packed sequences, none for a dense batch");
  for (const Named& t : {in.q, in.k, in.v}) check_one(t, in.q->device, in.q.called);
  check_rank(in.q, dimensions_of(p.q));
  for (const Named& t : {in.k, in.v}) check_rank(t, dimensions_of(p.kv));
  check_types(in);
  check_heads(in, p);
  if (p.q.packed()) check_alone(in.cu_q);
  if (p.kv.packed()) {
    check_alone(in.cu_kv);
    check_packed(in, p);
  } else {
    p.q.packed() ? check_packed_q(in, p) : check_dense_q(in, p);
    p.kv.paged() ? check_paged_kv(in, p) : check_dense_kv(in, p);
  }
  check_positions(in, p, in.is_per_entry() ? check_apart(in, p) : in.q_offset);
  p.q_offset = in.q_offset;
  p.scale = scale.value_or(1 / std::sqrt(static_cast<double>(p.d)));
  return p;
}

std::vector<std::int64_t> shape_of_o(const Problem& p, const Tensor& q) {
  if (p.q.packed()) return {q.shape[0], p.q_heads, p.dv};
  return {p.batch, p.q_heads, p.q.length, p.dv};
}

/// lse, its gradient, and the row maximum.
void check_row_values(const Named& t, const Problem& p, const Named& q) {
  if (!t->given()) return;
  check_one(t, q->device);
  check_type(t, types::row_values);
  const std::vector<std::int64_t> shape = p.q.packed() ? std::vector{p.q_heads, q->shape[0]}
                                                       : std::vector{p.batch, p.q_heads, p.q.length};
  check_shape(t, shape, {q});
}

/// Checks o, and tensors that are shaped like o.
void check_o(const Named& o, const Problem& p, const Named& q, const Named& v) {
  check_one(o, q->device, q.called);
  check_type(o, types::floats);
  check_shape(o, shape_of_o(p, *q), {q, v});
}

/// An o and its lse, given together or not at all, and the words for their use.
struct Pair {
  Code code;
  std::string_view why;
};
constexpr Pair to_merge{Code{"before-half"}, "results are merged by their lse"},
    of_forward{Code{"forward-half"}, "the backward reads both from the forward, or recomputes both"};

void check_pair(const Named& o, const Named& lse, const Pair& pair, const Problem& p, const Named& q, const Named& v) {
  if (o->given() != lse->given()) {
    const auto &there = o->given() ? o : lse, &missing = o->given() ? lse : o;
    throw refuse(std::string(pair.code.text), fmt::format("{} is given without {}", there.name(), missing.name()),
                 std::string(pair.why), fmt::format("pass {} too, or neither of them", missing.name()));
  }
  if (!o->given()) return;
  check_o(o, p, q, v);
  check_row_values(lse, p, q);
}

void check_gradient(const Named& t, const Named& of) {
  if (!t->given()) return;
  check_one(t, of->device);
  check_type(t, types::floats);
  check_shape(t, std::span(of->shape).first(static_cast<std::size_t>(of->rank)), {of});
}

std::vector<Named> captures_of(const BoundMod& bound, const Args& args) {
  std::vector<Named> out;
  for (std::size_t i = 0; i < args.captures.size(); ++i)
    out.push_back({bound.mod.captures[i].name, &args.captures[i], true});
  return out;
}

/// The captured tensor whose gradient the call requests, with its name.
Named captured_gradient(const BoundMod& bound, const Args& args, const Backward::Captured& asked,
                        const std::vector<Named>& captures) {
  for (std::uint32_t slot = 0; slot < captures.size(); ++slot)
    if ((asked.slot >= 0 || asked.of.given()) && is_of(asked, args, slot)) return captures[slot];
  std::string known = "this attention reads no captured tensor";
  if (!captures.empty()) {
    known = "this attention reads ";
    for (std::size_t i = 0; i < captures.size(); ++i)
      known += fmt::format("{}`{}` ({})", i ? ", " : "", bound.mod.captures[i].name, captures[i]->describe());
  }
  throw refuse("grad-not-captured", "a gradient is asked for a tensor that was not captured",
               fmt::format("it is {}; {}",
                           asked.slot >= 0 ? fmt::format("capture number {}", asked.slot) : asked.of.describe(), known),
               "ask for the gradient of a tensor that the score, prob mod or sink reads, with the same data, shape and "
               "strides");
}

/// True if both are gradients of the same capture.
bool overlap(const Backward::Captured& a, const Backward::Captured& b, const Args& args) {
  for (std::uint32_t slot = 0; slot < args.captures.size(); ++slot)
    if (is_of(a, args, slot) && is_of(b, args, slot)) return true;
  return false;
}

/// Refuses a slot that the pool does not have.
void check_slot_values(const Named& slots, const Named& k) {
  const std::int64_t pages = k->shape[0], page_size = k->shape[2];
  for (std::int64_t i = 0; i < slots->shape[0]; ++i)
    if (const std::int64_t slot = whole(*slots, i); slot < -1 || (slot >= 0 && slot / page_size >= pages))
      throw refuse("slots", fmt::format("slots[{}] is {}", i, slot),
                   fmt::format("{}, a pool of {} pages of {} rows: its slots begin at 0, and -1 leaves a row out",
                               description(k), pages, page_size),
                   fmt::format("pass page * {} + row of the page, or -1", page_size));
}

/// Checks new rows that go to slots of a pool.
Problem check_slots(const Inputs& in, const Named& v_new, const Named& slots) {
  Problem p;
  p.batch = 1;
  p.q.layout = Layout::packed;
  p.kv.layout = Layout::paged;
  for (const Named& t : {in.q, in.k, in.v}) check_one(t, in.q->device, in.q.called);
  check_rank(in.q, dimensions::tokens);
  for (const Named& t : {in.k, in.v}) check_rank(t, dimensions::paged);
  check_types(in);
  check_heads(in, p);
  check_pages(in, p);
  p.q.length = p.q.total = in.q->shape[0];
  check_positions(in, p, 0);
  check_o(v_new, p, in.q, in.v);
  check_one(slots, in.q->device, in.q.called);
  check_type(slots, types::slots);
  check_shape(slots, std::array{p.q.total}, {in.q});
  if (slots->device.kind == Device::Kind::cpu) check_slot_values(slots, in.k);
  return p;
}

}  // namespace

void check_scale(std::optional<double> scale) {
  if (!scale || std::isfinite(static_cast<float>(*scale))) return;
  throw refuse("bad-scale", fmt::format("the scale {} is not a finite f32", *scale),
               "s = scale * (q . k) is computed in f32, whose largest number is 3.4e38",
               "pass a finite scale, or none for 1 / sqrt(D)");
}

Error uneven_heads(std::int64_t q_heads, std::int64_t kv_heads, Place where, const std::string& numbers,
                   std::string fix) {
  return Error("head-groups", fmt::format("{} query heads cannot share {} KV heads", q_heads, kv_heads),
               std::move(where), numbers + "each KV head serves the same number of query heads", std::move(fix));
}

Problem check(const BoundMod& bound, const Forward& call, std::optional<double> scale) {
  const Named q{"q", &call.q}, k{"k", &call.k}, v{"v", &call.v}, o{"o", &call.o}, lse{"lse", &call.lse},
      max{"max", &call.max};
  const Problem p = check_inputs({q,
                                  k,
                                  v,
                                  {"cu_seqlens_q", &call.cu_seqlens_q},
                                  {"cu_seqlens_kv", &call.cu_seqlens_kv},
                                  call.q_offset,
                                  call.max_q_len,
                                  call.max_kv_len,
                                  &call},
                                 scale);
  const Args args = args_of(bound, call);
  std::vector<Named> inputs = captures_of(bound, args);
  for (const Named& t : inputs) check_one(t, call.q.device);
  inputs.insert(inputs.end(), {q, k, v});
  const auto add = [&](std::string_view called, const Tensor& t) {
    if (t.given()) inputs.push_back({called, &t});
  };
  add("kv_len", call.kv_len);
  add("q_offsets", call.q_offsets);
  add("page_table", call.page_table);

  check_o(o, p, q, v);
  check_row_values(lse, p, q);
  check_row_values(max, p, q);
  if (call.o_before.given() || call.lse_before.given()) {
    const Named o_before{"o_before", &call.o_before}, lse_before{"lse_before", &call.lse_before};
    check_pair(o_before, lse_before, to_merge, p, q, v);
    // o_before may be o: each row is read before it is written in the same place.
    if (*o_before != *o) inputs.push_back(o_before);
    if (*lse_before != *lse) inputs.push_back(lse_before);
  }
  check_in_place(o, {"o_before", &call.o_before});
  check_in_place(lse, {"lse_before", &call.lse_before});
  check_outputs(std::array{o, lse, max}, inputs);
  return p;
}

Problem check(const BoundMod& bound, const Backward& call, std::optional<double> scale) {
  const Named q{"q", &call.q}, k{"k", &call.k}, v{"v", &call.v}, o{"o", &call.o}, lse{"lse", &call.lse},
      grad_o{"grad_o", &call.grad_o}, grad_lse{"grad_lse", &call.grad_lse}, dq{"dq", &call.dq}, dk{"dk", &call.dk},
      dv{"dv", &call.dv};
  const Problem p = check_inputs({q,
                                  k,
                                  v,
                                  {"cu_seqlens_q", &call.cu_seqlens_q},
                                  {"cu_seqlens_kv", &call.cu_seqlens_kv},
                                  call.q_offset,
                                  call.max_q_len,
                                  call.max_kv_len},
                                 scale);
  const Args args = args_of(bound, call);
  const std::vector<Named> captures = captures_of(bound, args);
  for (const Named& t : captures) check_one(t, call.q.device);

  check_pair(o, lse, of_forward, p, q, v);
  check_o(grad_o, p, q, v);
  check_row_values(grad_lse, p, q);
  check_gradient(dq, q);
  check_gradient(dk, k);
  check_gradient(dv, v);

  std::vector<Named> inputs = captures, outputs{dq, dk, dv};
  inputs.insert(inputs.end(), {q, k, v, o, lse, grad_o, grad_lse});
  std::deque<std::string> names;
  for (const Backward::Captured& asked : call.captured) {
    const Named of = captured_gradient(bound, args, asked, captures);
    const Named into{names.emplace_back("the gradient of " + of.name()), &asked.into};
    if (!is_float(of->dtype))
      throw refuse("grad-not-float", fmt::format("{} has no gradient", of.name()),
                   fmt::format("{}, and only floating tensors have gradients", description(of)), "leave it out");
    for (const Backward::Captured& other : call.captured)
      if (&other < &asked && overlap(other, asked, args))
        throw refuse("grad-twice", fmt::format("the gradient of {} is asked for twice", of.name()),
                     "the gradients of all its reads are summed into one tensor", "ask once");
    check_one(into, call.q.device);
    check_gradient(into, of);
    outputs.push_back(into);
  }
  check_outputs(outputs, inputs);
  return p;
}

Problem check(const Append& call) {
  const Named k_new{"k_new", &call.k_new}, v_new{"v_new", &call.v_new}, k{"k", &call.k}, v{"v", &call.v},
      kv_len{"kv_len", &call.kv_len}, page_table{"page_table", &call.page_table}, cu{"cu_seqlens", &call.cu_seqlens},
      slots{"slots", &call.slots};
  static const Tensor none;
  const Forward cache{.kv_len = call.kv_len, .page_table = call.page_table};
  for (const auto& [name, value] : {std::pair{"k_scale", call.k_scale}, {"v_scale", call.v_scale}})
    if (!std::isfinite(value) || value == 0)
      throw refuse("bad-scale", fmt::format("{} is {}", name, value), "values are divided by it when they are stored",
                   "pass a finite number that is not 0");
  if (slots->given()) {
    for (const Named& other : {kv_len, page_table, cu})
      if (other->given())
        throw refuse("slots", fmt::format("slots and {} are both given", other.name()),
                     "slots alone say where new rows go", fmt::format("leave out {}", other.name()));
  } else {
    check_alone(kv_len);
  }
  const bool on_device = call.k_new.device.kind == Device::Kind::cuda;
  if (on_device && cu->given() && cu->device.kind == Device::Kind::cpu)
    throw refuse("cu-seqlens-device", "cu_seqlens is on the host, and k_new on a device",
                 "only the kernel reads the starts of new rows", "pass a copy of cu_seqlens on k_new's device");
  const auto refuse_misfit = [&] {
    throw refuse("kv-heads", "the new keys do not fit the cache",
                 fmt::format("{} and {}", description(k_new), description(k)),
                 "give k_new and v_new a row for each head and entry of the cache");
  };
  // Before the check of a call, which would speak of query heads.
  if (k_new->rank == (cu->given() || slots->given() ? 3 : 4) && k->rank == 4 && k_new->shape[1] != k->shape[1])
    refuse_misfit();
  const Inputs in{.q = k_new,
                  .k = k,
                  .v = v,
                  .cu_q = cu,
                  .cu_kv = {"cu_seqlens_kv", &none},
                  .q_offset = 0,
                  // Starts on a device cannot be read here. An upper bound is the number of all new rows.
                  .max_q_len = on_device ? call.k_new.shape[0] : 0,
                  .forward = &cache,
                  .one_type = false};
  Problem p;
  if (slots->given()) {
    p = check_slots(in, v_new, slots);
  } else {
    p = check_inputs(in, {});
    check_o(v_new, p, k_new, v);
  }
  if (p.kv_shared) refuse_misfit();
  check_outputs(std::array{k, v}, std::array{k_new, v_new, kv_len, page_table, cu, slots});
  return p;
}

}  // namespace attune::compiler
