// python/core/torch/operators.cpp — attune's kernels for operators of torch
#include "python/core/torch/operators.h"

#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <tuple>
#include <type_traits>

namespace attune::python {
namespace {

using Value = Shim::Value;

/// Calls torch's own kernel of an activated operator past the dispatcher. False if torch has none, or if it fails.
template <auto own>
bool call_own(const std::string& types, Value* stack);

constexpr Operator operators[] = {
    {"aten::_scaled_dot_product_fused_attention_overrideable", Kind::recorded, "oluuqkuuu"},
    {"aten::_scaled_dot_product_fused_attention_overrideable_backward", Kind::recorded, "ggg-"},
    {"aten::_scaled_dot_product_efficient_attention", Kind::recorded, "oluu"},
    {"aten::_scaled_dot_product_efficient_attention_backward", Kind::recorded, "ggg-"},
    {"attune::forward", Kind::compiled, "olm"},
    {"attune::forward_below", Kind::compiled, "olm"},
    {"attune::backward", Kind::compiled, "G"},
    {"attune::paged", Kind::compiled, "ol"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", Kind::activated, "oL", call_own<&Shim::own_cpu>},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", Kind::activated, "PPP",
     call_own<&Shim::own_cpu_backward>},
    {"aten::_scaled_dot_product_flash_attention", Kind::activated, "ol--qksSe", call_own<&Shim::own_flash>},
    {"aten::_scaled_dot_product_flash_attention_backward", Kind::activated, "ggg", call_own<&Shim::own_flash_backward>},
    {"aten::_scaled_dot_product_cudnn_attention", Kind::activated, "oc--qkiie", call_own<&Shim::own_cudnn>},
    {"aten::_scaled_dot_product_cudnn_attention_backward", Kind::activated, "ggg", call_own<&Shim::own_cudnn_backward>},
    {"aten::_scaled_dot_product_efficient_attention", Kind::activated, "Opii"},
    {"aten::_scaled_dot_product_efficient_attention_backward", Kind::activated, "PPPM"},
    {"aten::_flash_attention_forward", Kind::activated, "olsSe"},
    {"aten::_flash_attention_backward", Kind::activated, "ggg"}};

Form forms[std::size(operators)];
thread_local std::string reason_of_this_call;

/// A tensor without elements for a result that nobody asked for; `nth`: results of one call are different tensors.
/// They are made once, because torch takes as long to make one as a tensor of any size, and kept until the process
/// ends.
Value nothing_of(attune_device on, std::int32_t type, std::size_t nth) {
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::size_t>;
  static constinit Grown<std::pair<Key, Owned>> all;
  const Key key{on.device_type, on.device_id, type, nth};
  const auto* found = all.find([&](const auto& one) { return one.first == key; });
  if (!found) found = &all.add({key, new_tensor(on, type, {1, {0}, {1}}).owner});
  return found->second.again();
}

/// 0 for rows without keys, which a mask leaves, instead of -inf: the backwards of torch that take -inf to NaN may come
/// next. Torch's flash attention on GPUs and cuDNN take -inf.
void as_torchs(const Made& lse) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (!is_on_gpu(lse.at)) {
    std::size_t count = 1;
    for (int i = 0; i < lse.at.ndim; ++i) count *= static_cast<std::size_t>(lse.at.shape[i]);
    std::ranges::replace(std::span(static_cast<float*>(lse.at.data), count), -static_cast<float>(infinity), 0.0f);
    return;
  }
  const auto given = [](double number) { return reinterpret_cast<Value>(new Value(std::bit_cast<Value>(number))); };
  Value stack[] = {lse.owner.again(), given(std::numeric_limits<double>::quiet_NaN()), given(infinity), given(0)};
  check(shim().call("aten::nan_to_num_", "", stack, shim_version), "nan_to_num_");
  release(stack[0]);
}

bool attend(OperatorCall& given) {
  attune_call& call = given.call;
  const Operator& op = given.op;
  if (!given.read_tensors()) return false;
  const Entry* const entry = given.entry();
  if (!entry) return false;
  Made out = given.new_result(op.results[0]), lse = given.new_result(op.results[1]), state = given.draw(), largest;
  const attune_tensor* const of_out = given.by_heads(&out.at);
  attune_tensor of_lse = lse.at;
  call.o = of_out;
  if (of_lse.ndim != 2) of_lse.ndim = 3, of_lse.shape = call.q->shape;  // without padding, and cuDNN's last dimension
  const bool wants_lse = given.flag("compute_log_sumexp") || !given.has("compute_log_sumexp");
  if (wants_lse) call.lse = &of_lse;
  if (given.flag("with_max")) largest = given.new_result('m'), call.max = &largest.at;
  const bool is_padded = wants_lse && op.results[1] == 'p' && lse.at.shape[2] != call.q->shape[2];
  if (is_padded) check(shim().fill(lse.owner.get(), std::numeric_limits<double>::infinity()), "fill_");
  given.run(*entry, op.kind == Kind::recorded || given.flag("compute_log_sumexp"));
  if (wants_lse && given.mask() && (op.results[1] == 'L' || op.results[1] == 'p')) as_torchs(lse);
  Value made[9]{};
  for (std::size_t i = 2; i < op.results.size(); ++i) {
    const char of = op.results[i];
    made[i] = of == 'q'                                       ? std::bit_cast<Value>(call.q->shape[2])
              : of == 'k'                                     ? std::bit_cast<Value>(call.k->shape[2])
              : of == 'u'                                     ? lse.owner.again()
              : of == '-'                                     ? undefined_tensor().value()
              : (of == 's' || of == 'i') && state.owner.get() ? state.owner.value()
              : of != 'm'                                     ? given.new_result(of).owner.value()
              : call.max                                      ? largest.owner.value()
                                                              : nothing_of(call.q->device, shim().f32, 0);
  }
  made[0] = out.owner.value(), made[1] = lse.owner.value();
  given.give(made, op.results.size());
  return true;
}

/// Passes `grads` through attune::once, whose node, written in Python, refuses gradients of gradients.
void refuse_next(std::vector<Made>& grads, const OperatorCall& given) {
  const Shim& s = shim();
  Shim::List made = nullptr, read = nullptr;
  check(s.new_list(grads.size(), &made) | s.new_list(6, &read), "new_list");
  std::vector<Owned*> marked_ones;
  for (Made& one : grads) {
    if (!one.owner.get()) continue;
    marked_ones.push_back(&one.owner);
    check(s.list_push(made, one.owner.value()), "list_push_back");
  }
  for (const Argument one :
       {Argument("grad_o"), Argument("query"), Argument("key"), Argument("value"), Argument("out"), Argument("lse")}) {
    Shim::Tensor other = nullptr;
    check(s.new_handle(given.tensor(one), &other), "new_tensor_handle");
    check(s.list_push(read, reinterpret_cast<Value>(other)), "list_push_back");
  }
  Value stack[] = {reinterpret_cast<Value>(made), reinterpret_cast<Value>(read)};
  check(s.call("attune::once", "", stack, shim_version), "call_dispatcher");
  const List marked(stack[0]);
  for (std::size_t i = 0; i < marked_ones.size(); ++i) *marked_ones[i] = Owned(marked[i]);
  free_arguments("l", stack);
}

bool differentiate(OperatorCall& given) {
  attune_call& call = given.call;
  const Operator& op = given.op;
  const bool is_recorded = op.kind == Kind::recorded;
  if (!given.tensor("grad_o")) {
    if (!is_recorded) return false;
    Value made[4];
    for (Value& one : made) one = undefined_tensor().value();  // nothing depends on the output
    given.give(made, std::size(made));
    return true;
  }
  call.pass = ATTUNE_BACKWARD;
  if (!given.read_tensors()) return false;
  const Entry* const entry = given.entry();
  if (!entry) return false;
  if (given.drops()) given.capture_seed(given.tensor("philox_seed"));
  call.o = given.by_heads(given.read("out")), call.grad_o = given.by_heads(given.read("grad_o"));
  attune_tensor of_lse = *given.read("lse");
  if (of_lse.ndim != 2) of_lse.ndim = 3, of_lse.shape = call.q->shape;
  call.lse = &of_lse, call.grad_lse = given.read("grad_lse");
  if (call.grad_lse && !same(call.grad_lse->dtype, of_lse.dtype)) return false;
  const std::size_t count = 3 + call.n_captures;
  std::vector<Made> grads(count);
  std::vector<const attune_tensor*> written(count);
  std::optional<List> wanted;
  if (given.has("wanted")) wanted.emplace(given.value_of("wanted"));
  for (std::size_t i = 0; i < count; ++i) {
    if (given.drops() && i == count - 1) continue;  // the seed
    if (wanted ? i >= wanted->size() || ((*wanted)[i] & 1) == 0 : i >= 3) continue;
    const attune_tensor& like = i < 3 ? given.input(i) : *call.captures[i - 3];
    const bool by_position = op.results[0] == 'P' && i < 3;
    grads[i] = by_position ? given.new_by_position(like, like.shape[3]) : empty_like(like);
    written[i] = i < 3 ? given.by_heads(&grads[i].at) : &grads[i].at;
  }
  call.dq = written[0], call.dk = written[1], call.dv = written[2];
  call.captured_grads = written.data() + 3, call.n_captured_grads = call.n_captures;
  given.run(*entry, false);
  if (is_recorded && shim().grad_mode()) refuse_next(grads, given);
  if (op.results[0] == 'G') {
    Shim::List list = nullptr;
    check(shim().new_list(count, &list), "new_list");
    for (std::size_t i = 0; i < count; ++i)
      check(shim().list_push(list, written[i] ? grads[i].owner.value()
                                              : nothing_of(call.q->device, type_of(call.q->dtype), i)),
            "list_push_back");
    Value made = reinterpret_cast<Value>(list);
    given.give(&made, 1);
    return true;
  }
  Value made[4];
  for (std::size_t i = 0; i < op.results.size(); ++i)
    made[i] = i < count && grads[i].owner.get() ? grads[i].owner.value() : undefined_tensor().value();
  given.give(made, op.results.size());
  return true;
}

/// Calls the operator of Python's: of attune's operators the one that computes what these kernels do not; of torch's
/// the one that hands over to torch's own kernel. The latter has no lengths among its results: torch 2.11 takes the
/// types of an operator's results in the opposite order.
void call_python(const OperatorCall& given) {
  const std::string_view name = given.op.name, results = given.op.results;
  const std::string own = name == "attune::forward_below" ? "attune::forward_slowly"
                          : given.op.kind == Kind::compiled
                              ? std::string(name) + "_slowly"
                              : "attune::" + std::string(name.substr(name.find("::") + 2));
  const std::size_t lengths = results.find("qk");
  std::int64_t found[2]{};
  for (std::size_t i = 0; i < 2 && lengths != results.npos; ++i) {
    std::int64_t rank = 0, *sizes = nullptr;
    const Shim::Tensor tensor = i == 0 ? given.tensor("query") : given.tensor("key");
    check(shim().get_dim(tensor, &rank) | shim().get_sizes(tensor, &sizes), "get_sizes");
    if (rank > 2) found[i] = sizes[2];
  }
  check(shim().call(own.c_str(), "", given.stack, shim_version), own.c_str());
  if (lengths == results.npos) return;
  std::copy_backward(given.stack + lengths, given.stack + results.size() - 2, given.stack + results.size());
  for (std::size_t i = 0; i < 2; ++i) given.stack[lengths + i] = std::bit_cast<Value>(found[i]);
}

template <auto own>
bool call_own(const std::string& types, Value* stack) {
  const auto call = [&]<class... Arguments>(std::int32_t (*function)(Arguments...)) {
    if (!function) return false;
    Value made[9]{};
    std::size_t at = 0;
    const auto next = [&]<class T>(std::type_identity<T>) {
      Value* const place = at < types.size() ? stack + at : made + (at - types.size());
      const bool is_result = at++ >= types.size();
      if constexpr (std::is_pointer_v<T>)
        return is_result ? reinterpret_cast<T>(place) : reinterpret_cast<T>(*place);
      else if constexpr (std::is_same_v<T, std::int32_t>)
        return static_cast<std::int32_t>(*place & 1);
      else
        return std::bit_cast<T>(*place);
    };
    const std::tuple<Arguments...> arguments{next(std::type_identity<Arguments>{})...};
    if (std::apply(function, arguments) != 0) return false;
    free_arguments(types.c_str(), stack);
    std::copy_n(made, sizeof...(Arguments) - types.size(), stack);
    return true;
  };
  return call(shim().*own);
}

template <std::size_t which>
void kernel(Value* stack, std::uint64_t, std::uint64_t) {
  OperatorCall given(operators[which], forms[which], stack);
  const auto compute = [&] { return given.has("grad_o") ? differentiate(given) : attend(given); };
  unsigned bit = 0;
  try {  // while something is refused, nothing is on the stack yet
    if (compute()) return;
  } catch (const Refused& why) {
    if (given.op.kind != Kind::activated || !why.is_alike)
      throw std::runtime_error(why.why);  // torch gives it to Python
    bit = why.bit;
    if ((given.form.told & bit) != 0 && given.form.own && given.form.own(given.form.types, stack)) return;
    reason_of_this_call = why.why;
  } catch (const nb::python_error& error) {  // torch passes on only its text
    throw std::runtime_error(error.what());
  } catch (const std::exception& why) {
    if (given.op.kind == Kind::recorded || given.drops()) throw;
    reason_of_this_call = why.what();
  }
  call_python(given);
  given.form.told |= bit;
}

constexpr auto kernels = []<std::size_t... which>(std::index_sequence<which...>) {
  return std::array<Shim::Kernel, sizeof...(which)>{kernel<which>...};
}
(std::make_index_sequence<std::size(operators)>());
std::vector<Shim::Library> libraries_of_activated;  // guarded by the GIL

}  // namespace

bool place_operator(const std::string& name, const std::string& key, const std::string& kind,
                    const std::vector<std::pair<std::string, std::string>>& arguments, const std::string& results,
                    nb::object make) {
  const auto* const op = std::ranges::find_if(operators, [&](const Operator& one) {
    return one.name == name && names_of_kinds[static_cast<std::size_t>(one.kind)] == kind;
  });
  if (op == std::end(operators) || !shim().implement) return false;
  std::string types;
  std::array<int, arguments_of_operators> places;
  places.fill(-1);
  for (const auto& [argument, letter] : arguments) {
    const std::size_t which = which_argument(argument);
    if (which == arguments_of_operators) return false;
    places[which] = static_cast<int>(types.size());
    types += letter;
  }
  const bool is_backward = op->results.find_first_of("gPG") == 0;
  for (const std::string_view needed : {"query", "key", "value", "scale", is_backward ? "lse" : "query"})
    if (places[which_argument(needed)] < 0) return false;
  if (op->results != "G" && results.size() != op->results.size()) return false;
  if (key.empty()) return true;
  const auto which = static_cast<std::size_t>(op - std::begin(operators));
  Form& form = forms[which];
  if (!make.is(form.make)) form.make = make.release();
  form.places = places, form.types = types, form.told = 0;
  const bool is_of_host = name.find("_for_cpu") != name.npos;  // in tests, kernels of GPUs get tensors of the host
  form.own = is_of_host == (key == "CPU") ? op->own : nullptr;
  // The backward of a recorded call also stands above torch's own node, which would refuse gradients of gradients in
  // other words.
  const bool is_above = op->kind == Kind::recorded && op->results[0] == 'g';
  for (const std::string& one : is_above ? std::vector{key, "Autograd" + key} : std::vector{key}) {
    Shim::Library library = nullptr;  // for as long as the process lives, or until attune is deactivated
    check(shim().library(name.substr(0, name.find(':')).c_str(), one.c_str(), __FILE__, __LINE__, &library), "library");
    if (op->kind == Kind::activated) libraries_of_activated.push_back(library);
    check(shim().implement(library, name.substr(name.find(':') + 2).c_str(), kernels[which], shim_version),
          name.c_str());
  }
  return true;
}

void deactivate_operators() {
  for (Shim::Library library : std::exchange(libraries_of_activated, {}))
    check(shim().delete_library(library), "library");
}

std::string why_torch() { return std::exchange(reason_of_this_call, {}); }

}  // namespace attune::python
