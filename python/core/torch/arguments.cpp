// python/core/torch/arguments.cpp — how the arguments of torch's operators become a call
#include "python/core/torch/operators.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <functional>

#include "python/core/call.h"
#include "python/core/gil.h"

namespace attune::python {
namespace {

using Value = Shim::Value;

std::atomic<std::int64_t> engine{0};
std::atomic<bool> takes_dropout{false};

/// Attentions that were called before, by what an operator says of them; kept until the process ends.
struct Known {
  std::string name;
  std::shared_ptr<const Entry> entry;
};
constexpr std::size_t most_known = 1024;
constinit std::array<Grown<Known>, most_known> known;  // by hash
std::size_t count_of_known = 0;                        // guarded by the GIL

Grown<Known>& alike(const std::string& name) { return known[std::hash<std::string>()(name) % known.size()]; }
const Entry* find(const std::string& name) {
  const Known* const found = alike(name).find([&](const Known& one) { return one.name == name; });
  return found ? found->entry.get() : nullptr;
}

constexpr const char* reasons[] = {"dropout, without activate(dropout=True)",
                                   "a debug mask is asked for",
                                   "tensors of {dtype}",
                                   "tensors of other than four dimensions",
                                   "a tensor is empty",
                                   "a mask that is written out, under which cuDNN is faster",
                                   "alibi_slopes is given",
                                   "block_table is given without cum_seq_q"};
enum Reason { for_dropout, for_debug, for_type, for_rank, for_nothing, for_cudnn, for_alibi, for_pages };
void refuse_if(bool is_so, Reason reason) {
  if (is_so) throw Refused{reasons[reason], 1u << reason};
}

/// With a materialised mask cuDNN's forward is faster, but its backward only where attune's reads the mask pair by
/// pair, or queries are few. Forward and backward must choose alike, so only what both see counts: the mask, and q and
/// v.
bool is_for_cudnn(const attune_tensor& mask, const attune_tensor& q, const attune_tensor& v) {
  constexpr std::int64_t many = 2048;   // queries: with that many attune's two directions were measured, and are faster
  constexpr std::int64_t widest = 128;  // the widest heads for which attune's backward copies a mask
  const int columns = mask.ndim - 1;
  if (q.shape[2] < many) return true;
  if (mask.ndim < 2 || mask.shape[columns] == 1 || mask.shape[columns - 1] == 1) return false;
  const std::int64_t unit = 128 / mask.dtype.bits;  // elements in 16 bytes
  bool copied = same(mask.dtype, q.dtype) && q.dtype.bits == 16 && q.shape[3] <= widest && v.shape[3] <= widest &&
                mask.strides[columns] == 1 && mask.shape[columns] % unit == 0 &&
                reinterpret_cast<std::uintptr_t>(mask.data) % 16 == 0;
  for (int i = 0; i < columns; ++i) copied = copied && (mask.shape[i] == 1 || mask.strides[i] % unit == 0);
  return !copied;
}
constexpr std::int64_t few_queries = 64;  // attune's decode kernels take up to these

}  // namespace

std::optional<Value> OperatorCall::number(Argument of) const {
  if (!has(of)) return std::nullopt;
  if (letter(of) == 'n') return value_of(of);
  const auto* const at = reinterpret_cast<const Value*>(value_of(of));
  return at ? std::optional(*at) : std::nullopt;
}

Shim::Tensor OperatorCall::tensor(Argument of) const {
  if (!has(of)) return nullptr;
  Value found = value_of(of);
  if (letter(of) == 'o') found = found ? *reinterpret_cast<const Value*>(found) : 0;
  bool is_defined = false;
  if (found) check(shim().is_defined(reinterpret_cast<Shim::Tensor>(found), &is_defined), "is_defined");
  return is_defined ? reinterpret_cast<Shim::Tensor>(found) : nullptr;
}

const attune_tensor* OperatorCall::by_heads(const attune_tensor* of) {
  if (!of || of->ndim != 4 || !has("window_size_left")) return of;
  auto& [shape, strides] = turned_.emplace_back();
  std::copy_n(of->shape, 4, shape.begin()), std::copy_n(of->strides, 4, strides.begin());
  std::swap(shape[1], shape[2]), std::swap(strides[1], strides[2]);
  attune_tensor out = *of;
  out.shape = shape.data(), out.strides = strides.data();
  return add(out);
}

Made OperatorCall::new_by_position(const attune_tensor& like, std::int64_t width) const {
  return new_tensor(like.device, type_of(like.dtype),
                    Layout{4, {like.shape[0], like.shape[1], like.shape[2], width}}.in({0, 2, 1, 3}));
}

bool OperatorCall::read_tensors() {
  const bool is_activated = op.kind == Kind::activated;
  if (is_activated) refuse_by_flags();
  q_ = add(memory_of(handle("query"))), k_ = add(memory_of(handle("key"))), v_ = add(memory_of(handle("value")));
  call.q = by_heads(q_), call.k = by_heads(k_), call.v = by_heads(v_);
  if (is_activated) refuse_by_tensors();
  call.page_table = read("page_table");
  if (may_be_packed()) call.cu_q = read("cu_q"), call.cu_kv = call.page_table ? nullptr : read("cu_kv");
  call.kv_len = has("kv_len") ? read("kv_len") : call.page_table ? read("seqused_k") : nullptr;
  call.q_offsets = read("q_offsets"), call.o_before = read("o_before"), call.lse_before = read("lse_before");
  if (is_on_gpu(*call.q) && call.cu_q) call.max_q_len = whole("max_q");
  if (is_on_gpu(*call.q) && call.cu_kv) call.max_kv_len = whole("max_kv");
  call.fixed_split_size = whole("fixed_split_size");
  if (is_activated && call.page_table)
    call.fixed_split_size = split_size(whole("num_splits"), whole("max_q") * call.q->shape[1] / call.k->shape[1]);
  return op.kind != Kind::compiled || is_usual();
}

const Entry* OperatorCall::entry() {
  const bool by_text = op.kind == Kind::compiled;
  const Entry* found = nullptr;
  if (op.kind == Kind::recorded) {
    found = &entry_in(tensor("attn_mask"));
  } else {
    thread_local std::string name, last_name;  // the layers of a model make equal calls one after another
    thread_local const Entry* last = nullptr;
    by_text ? read_texts(name) : read_flags(name);
    if (name == last_name)
      found = last;
    else if ((found = find(name)))
      last = found, last_name = name;
    else if (!(found = made(name)))
      return nullptr;
  }
  call.captures = captured_.data(), call.n_captures = captured_.size();
  const std::vector<double>& ints = by_text ? ints_ : found->ints;
  call.params = ints.data(), call.n_params = ints.size();
  return found;
}

const Entry* OperatorCall::made(std::string name) {
  const Acquired gil;
  if (!gil) return nullptr;
  const std::optional<Value> scaled = number("scale");
  const nb::object factor = scaled ? nb::object(nb::float_(std::bit_cast<double>(*scaled))) : nb::none();
  const nb::object call_of = op.kind == Kind::compiled
                                 ? nb::object(
                                       form.make(name.substr(sizeof(std::int64_t) * of_all), ints_.size(), factor))
                                 : nb::object(form.make(flags_, factor));
  if (!nb::isinstance<nb::str>(call_of)) {
    made_ = std::make_shared<const Entry>(nb::cast<const TorchCall&>(call_of).entry());
    if (count_of_known < most_known) {
      Grown<Known>& chain = alike(name);
      chain.add({std::move(name), made_});
      ++count_of_known;
    }
  } else if (op.kind == Kind::activated) {
    throw Refused{nb::cast<std::string>(call_of)};
  }
  return made_.get();
}

void OperatorCall::run(const Entry& entry, bool is_recorded) {
  std::optional<With> listening;
  if (is_long(call)) listening.emplace().listen();
  attune_with with{};
  std::function<void()> compiled;
  if (is_recorded && is_on_gpu(*call.q))
    compiled = [&] { start_backward(entry.attention->attention, call, std::vector<bool>(call.n_captures)); };
  attune_error* const error = python::run(*entry.attention, call, listening ? listening->with : with, compiled);
  if (listening && listening->raised) {
    const Acquired gil;
    listening->finish(error);
  }
  if (!error) return;
  attune_said said{};
  said.size = sizeof said;
  attune_error_read(error, &said);
  const bool as_a_page = op.kind != Kind::activated || said.bug || drops();
  Refused why{as_a_page ? said.message : '[' + std::string(said.code) + "] " + said.problem};
  attune_error_free(error);
  why.is_alike = !drops();
  throw why;
}

Made OperatorCall::new_result(char of) {
  const attune_tensor &q = *call.q, &v = *call.v;
  const auto* const n = q.shape;
  const attune_device on = q.device;
  const Shim& s = shim();
  constexpr std::int64_t rows = 32;  // the efficient attention's lse has room for a multiple of them
  constexpr Layout::Order positions_first{0, 2, 1, 3}, as_they_come{0, 1, 2, 3};
  switch (of) {
    case 'o': return new_output(*q_, *v_);
    case 'O': return new_by_position(q, v.shape[3]);
    case 'L': return new_tensor(on, s.f32, Layout{3, {n[0], n[1], n[2]}}.in(positions_first));
    case 'c': return new_tensor(on, s.f32, Layout{4, {n[0], n[1], n[2], 1}}.in(as_they_come));
    case 'p':
      return new_tensor(
          on, s.f32,
          Layout{3, {n[0], n[1], flag("compute_log_sumexp") ? (n[2] + rows - 1) / rows * rows : 0}}.in(as_they_come));
    case 's': return new_tensor(on, s.u64, {1, {2}, {1}});
    case 'S': return new_tensor(on, s.u64, {});
    case 'i': return new_tensor(on, s.i64, {});
    case 'e': return new_tensor(on, type_of(q.dtype), {1, {0}, {1}});
    default: return new_rows(q);
  }
}

void OperatorCall::refuse_by_flags() const {
  refuse_if(tensor("alibi_slopes"), for_alibi);
  const bool has_state = has("philox_seed") || op.results.find_first_of("si") != op.results.npos;
  refuse_if(drops() && !(takes_dropout.load(std::memory_order_relaxed) && has_state), for_dropout);
  if (drops() && flag("return_debug_mask")) throw Refused{reasons[for_debug], 1u << for_debug, false};
  refuse_if(flag("return_debug_mask"), for_debug);
  refuse_if(tensor("page_table") && !tensor("cu_q"), for_pages);
  std::int32_t type = 0;
  check(shim().get_dtype(handle("query"), &type), "get_dtype");
  refuse_if(type != shim().f32 && type != shim().bf16 && type != shim().f16, for_type);
}

void OperatorCall::refuse_by_tensors() {
  for (const attune_tensor* const one : {call.q, call.k, call.v}) {
    refuse_if(one->ndim != 4 && (one->ndim != 3 || !tensor("cu_q")), for_rank);
    for (int i = 0; i < one->ndim; ++i) refuse_if(one->shape[i] == 0, for_nothing);
  }
  mask_ = read("attn_mask");
  const bool is_cudnns = op.name.find("_cudnn_") != op.name.npos;
  if (!mask_ || !is_cudnns) return;
  refuse_if(has("compute_log_sumexp") && !flag("compute_log_sumexp") ? call.q->shape[2] > few_queries
                                                                     : is_for_cudnn(*mask_, *call.q, *call.v),
            for_cudnn);
}

bool OperatorCall::is_usual() const {
  const attune_tensor &q = *call.q, &k = *call.k, &v = *call.v;
  const int rank = call.cu_q ? 3 : 4, rank_of_keys = call.cu_q && !call.page_table && !call.kv_len ? 3 : 4;
  if (q.ndim != rank || k.ndim != rank_of_keys || v.ndim != rank_of_keys || is_long(call)) return false;
  if (q.dtype.bits > 32 || q.dtype.code == ATTUNE_INT || q.dtype.code == ATTUNE_BOOL) return false;
  if (!call.kv_len && (!same(q.dtype, k.dtype) || !same(q.dtype, v.dtype))) return false;
  for (const attune_tensor* const one : {&q, &k, &v})
    for (int i = 0; i < one->ndim; ++i)
      if (one->shape[i] == 0) return false;
  return true;
}

std::array<std::int64_t, OperatorCall::of_all> OperatorCall::common() const {
  const std::optional<Value> scaled = number("scale");
  return {engine.load(std::memory_order_relaxed), scaled.has_value(), std::bit_cast<std::int64_t>(scaled.value_or(0))};
}

void OperatorCall::read_texts(std::string& name) {
  const auto first = common();
  name.assign(reinterpret_cast<const char*>(first.data()), sizeof first);
  for (int i = 0; i < 5; ++i) {
    const char* text = nullptr;
    check(shim().string_text(reinterpret_cast<Shim::String>(stack[form.at("score") + i]), &text), "string_c_str");
    name.append(text).push_back('\n');
  }
  const List tensors(value_of("captures")), numbers(value_of("ints"));
  views_of_captures_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const attune_tensor& one = views_of_captures_.emplace_back(memory_of(reinterpret_cast<Shim::Tensor>(tensors[i])));
    captured_.push_back(&one);
    name += one.dtype.code == ATTUNE_BOOL ? 'b' : one.dtype.code == ATTUNE_INT ? 'i' : 'f';
    name += std::to_string(one.ndim);
  }
  for (std::size_t i = 0; i < numbers.size(); ++i)
    ints_.push_back(static_cast<double>(std::bit_cast<std::int64_t>(numbers[i])));
}

void OperatorCall::read_flags(std::string& name) {
  const attune_tensor* const counts = call.page_table ? nullptr : read("seqused_k");
  const auto [way, has_scale, scaled] = common();
  const bool is_windowed = has("window_size_left"), is_causal = flag("is_causal");
  std::int64_t ones = 0;
  for (int i = 0; mask_ && i < mask_->ndim; ++i) ones |= std::int64_t{mask_->shape[i] == 1} << i;
  flags_ = {way,
            has_scale,
            scaled,
            mask_ ? mask_->ndim : 0,
            ones,
            mask_ && mask_->dtype.code == ATTUNE_BOOL,
            is_causal,
            is_windowed ? whole("window_size_left", -1) : -1,
            is_causal     ? 0
            : is_windowed ? whole("window_size_right", -1)
                          : -1,
            is_windowed,
            counts != nullptr,
            has("dropout_p") ? std::bit_cast<std::int64_t>(value_of("dropout_p")) : 0};
  name.assign(reinterpret_cast<const char*>(flags_.data()), sizeof flags_);
  for (const attune_tensor* const one : {mask_, counts})
    if (one) captured_.push_back(one);
}

Made OperatorCall::draw() {
  const std::size_t which = op.results.find_first_of("si");
  if (which == op.results.npos) return {};
  Made state = new_result(op.results[which]);
  if (!drops()) return state;
  // Torch draws no u64. The generator's state belongs to graphs that are captured, too.
  const Shim& s = shim();
  Shim::Tensor words = nullptr;
  const attune_device on = state.at.device;
  check(s.of_memory(state.at.data, state.at.ndim, state.at.shape, state.at.strides, 0, s.i64,
                    on.device_type == ATTUNE_CUDA ? s.cuda : 0, on.device_id, &words),
        "create_tensor_from_blob");
  Value stack[] = {reinterpret_cast<Value>(words), 0};
  check(s.call("aten::random_", "", stack, shim_version), "random_");
  release(stack[0]);
  capture_seed(state.owner.get());
  return state;
}

void OperatorCall::capture_seed(Shim::Tensor state) {
  void* words = nullptr;
  check(shim().get_data_ptr(state, &words), "get_data_ptr");
  attune_tensor seed{};
  seed.data = words, seed.device = call.q->device, seed.dtype = {ATTUNE_INT, 32, 1};
  captured_.push_back(add(seed));
  call.captures = captured_.data(), call.n_captures = captured_.size();
}

void take_dropout(bool is_taken) { takes_dropout = is_taken; }

void choose_engine(std::int32_t target, std::int32_t exact) {
  engine = std::int64_t{target} << 32 | std::uint32_t(exact);
}

}  // namespace attune::python
