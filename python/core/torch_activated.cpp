// python/core/torch_activated.cpp — attune's kernels that replace those of torch's attentions, without Python
#include "python/core/torch_activated.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "python/core/grown.h"
#include "python/core/torch_call.h"
#include "python/core/torch_tensors.h"

namespace attune::python {
namespace {

using Value = Shim::Value;
constexpr int none = -1;

/// Where an operator has its arguments. `types` are those of free_arguments().
struct Form {
  const char* name;
  const char* types;
  int q, mask, dropout, causal, scale;  // q: then k, v and, of a backward, the output and the lse
  int debug = none, wants_lse = none;
  bool by_position = false;  ///< gradients and lse in the memory order [batch, positions, heads]
};

constexpr Form cpu{"_scaled_dot_product_flash_attention_for_cpu", "tttnnos", 0, 5, 3, 4, 6, none, none, true};
constexpr Form cpu_backward{
    "_scaled_dot_product_flash_attention_for_cpu_backward", "ttttttnnos", 1, 8, 6, 7, 9, none, none, true};
constexpr Form flash{"_scaled_dot_product_flash_attention", "tttnnns", 0, none, 3, 4, 6, 5};
constexpr Form flash_backward{"_scaled_dot_product_flash_attention_backward", "ttttttttnnnntts", 1, none, 10, 11, 14};
constexpr Form cudnn{"_scaled_dot_product_cudnn_attention", "tttonnnns", 0, 3, 5, 6, 8, 7, 4};
constexpr Form cudnn_backward{"_scaled_dot_product_cudnn_attention_backward", "tttttttttttnnnns", 1, 8, 13, 14, 15};

/// Attentions that were called before.
struct Known {
  Asked asked;
  Entry entry;
};
constexpr std::size_t most_known = 256;
constexpr std::int64_t few_queries = 64, many_queries = 2048;  // as _FEW and _MANY in _activate.py
constinit Grown<std::unique_ptr<Known>> known;
std::size_t count_of_known = 0;  // guarded by the GIL

Entry* entry_of(const Asked& asked) {
  const auto* const found = known.find([&](const auto& one) { return one->asked == asked; });
  return found ? &(*found)->entry : nullptr;
}

double number_of(Value value) { return std::bit_cast<double>(value); }
bool flag_of(Value value) { return (value & 1) != 0; }

/// As _is_for_cudnn() of _activate.py: true for a mask of which attune's backward reads pair by pair, or for few
/// queries.
bool is_for_cudnn(const View& mask, const View& q, const View& v) {
  const attune_tensor& t = mask.tensor;
  const int columns = t.ndim - 1;
  if (q.tensor.shape[2] < many_queries) return true;
  if (t.ndim < 2 || t.shape[columns] == 1 || t.shape[columns - 1] == 1) return false;
  constexpr std::int64_t widest = 128;
  const std::int64_t unit = 128 / t.dtype.bits;  // elements in 16 bytes
  bool copied = mask.dtype == q.dtype && q.dtype != shim().f32 && q.tensor.shape[3] <= widest &&
                v.tensor.shape[3] <= widest && t.strides[columns] == 1 && t.shape[columns] % unit == 0 &&
                (reinterpret_cast<std::uintptr_t>(t.data) + t.byte_offset) % 16 == 0;
  for (int i = 0; i < columns; ++i) copied = copied && (t.shape[i] == 1 || t.strides[i] % unit == 0);
  return !copied;
}

/// Why a call is torch's own; none: attune takes it, or Python says why not.
enum class Reason : unsigned { none = 0, dropout = 1, debug = 2, type = 4, written = 8 };
/// The reasons of which Python has warned.
template <const Form& form>
std::atomic<unsigned> warned{0};

/// A call of an operator, whose arguments are on its stack.
class Call {
 public:
  Call(const Form& form, const Value* stack) : form_(form), stack_(stack) {}

  Shim::Tensor tensor(int at) const {
    return form_.types[at] == 'o' ? optional_tensor(stack_[at]) : reinterpret_cast<Shim::Tensor>(stack_[at]);
  }

  /// The mask, or null.
  Shim::Tensor mask() const {
    bool defined = false;
    if (form_.mask == none || !tensor(form_.mask)) return nullptr;
    check(shim().is_defined(tensor(form_.mask), &defined), "is_defined");
    return defined ? tensor(form_.mask) : nullptr;
  }

  /// The reason for torch's kernel, as _why_not and _cudnn in _activate.py have it: under a materialised mask cuDNN is
  /// faster without gradients, unless queries are few, and with gradients for some layouts.
  Reason reason() const {
    if (number_of(stack_[form_.dropout]) != 0) return Reason::dropout;
    if (form_.debug != none && flag_of(stack_[form_.debug])) return Reason::debug;
    std::int32_t type = 0;
    check(shim().get_dtype(tensor(form_.q), &type), "get_dtype");
    if (type != shim().f32 && type != shim().bf16 && type != shim().f16) return Reason::type;
    const Shim::Tensor written = mask();
    if ((&form_ != &cudnn && &form_ != &cudnn_backward) || !written) return Reason::none;
    const View q(tensor(form_.q));
    const bool is_cudnns = &form_ == &cudnn && !wants_lse() ? q.tensor.shape[2] > few_queries
                                                            : is_for_cudnn(View(written), q, View(tensor(form_.q + 2)));
    return is_cudnns ? Reason::written : Reason::none;
  }

  /// True on the device of the operator's kernels; in tests those of GPUs get tensors of the host.
  bool is_at_home() const {
    std::int32_t type = 0;
    check(shim().get_device_type(tensor(form_.q), &type), "get_device_type");
    return (type == shim().cuda) != form_.by_position;
  }

  Asked asked(const View* mask) const {
    Asked out{.causal = flag_of(stack_[form_.causal])};
    if (const Value scale = stack_[form_.scale]) out.scale = number_of(*reinterpret_cast<const Value*>(scale));
    if (!mask) return out;
    out.rank = mask->tensor.ndim, out.keeps = mask->dtype == shim().boolean;
    for (int i = 0; i < out.rank; ++i) out.ones |= unsigned(mask->tensor.shape[i] == 1) << i;
    return out;
  }

  bool wants_lse() const { return form_.wants_lse != none && flag_of(stack_[form_.wants_lse]); }

 private:
  const Form& form_;
  const Value* stack_;
};

Owned made_like(const Form& form, const View& like, std::int64_t width) {
  if (!form.by_position) return empty_like(like, width);
  const auto* n = like.tensor.shape;
  return new_tensor(like, {n[0], n[1], n[2], width}, {0, 2, 1, 3});
}

Owned made_rows(const Form& form, const View& q) {
  if (!form.by_position) return rows_of(q);
  const auto* n = q.tensor.shape;
  const std::int64_t strides[] = {n[1] * n[2], 1, n[1]};
  return new_tensor(q, 3, n, strides, shim().f32);
}

/// Tensors instead of the state of random numbers and the debug mask, which nobody reads.
void unread(const View& q, Value* stack, std::size_t seed_rank, std::int32_t seed_type) {
  constexpr std::int64_t two = 2, nothing = 0, step = 1;
  stack[2] = undefined_tensor().value(), stack[3] = undefined_tensor().value();
  stack[6] = new_tensor(q, seed_rank, &two, &step, seed_type).value();
  stack[7] = new_tensor(q, 0, nullptr, nullptr, seed_type).value();
  stack[8] = new_tensor(q, 1, &nothing, &step, q.dtype).value();
}

/// 0 for rows without keys, which a mask leaves, instead of -inf: what torch's backward on the CPU expects.
void as_torchs(const attune_tensor& lse) {
  const auto count = static_cast<std::size_t>(lse.shape[0] * lse.shape[1] * lse.shape[2]);
  const std::span all(reinterpret_cast<float*>(static_cast<char*>(lse.data) + lse.byte_offset), count);
  std::ranges::replace(all, -std::numeric_limits<float>::infinity(), 0.0f);
}

/// The lse as cuDNN gives it: [batch, heads, positions, 1].
Owned as_cudnns(const View& q) {
  const auto* n = q.tensor.shape;
  const std::int64_t sizes[] = {n[0], n[1], n[2], 1}, strides[] = {n[1] * n[2], n[2], 1, 1};
  return new_tensor(q, 4, sizes, strides, shim().f32);
}

bool attend(const Form& form, Value* stack) {
  const Call given(form, stack);
  const View q(given.tensor(form.q)), k(given.tensor(form.q + 1)), v(given.tensor(form.q + 2));
  if (!are_usual(q, k, v) || !is_ordered(q.tensor)) return false;
  const std::optional<View> mask = given.mask() ? std::optional<View>(given.mask()) : std::nullopt;
  Entry* const entry = entry_of(given.asked(mask ? &*mask : nullptr));
  if (!entry) return false;
  const bool by_cudnn = &form == &cudnn, on_gpu = by_cudnn || &form == &flash;
  Owned out = empty_like(q, v.tensor.shape[3]), lse = by_cudnn ? as_cudnns(q) : made_rows(form, q);
  const View of_out(out);
  View of_lse(lse);
  of_lse.tensor.ndim = 3;
  attune_call call{};
  call.q = &q.tensor, call.k = &k.tensor, call.v = &v.tensor, call.o = &of_out.tensor;
  if (!by_cudnn || given.wants_lse()) call.lse = &of_lse.tensor;
  const attune_tensor* const captures[] = {mask ? &mask->tensor : nullptr};
  call.captures = captures, call.n_captures = mask ? 1 : 0;
  run(*entry, call, given.wants_lse());
  if (form.by_position && mask) as_torchs(of_lse.tensor);
  const std::int64_t lengths[] = {q.tensor.shape[2], k.tensor.shape[2]};
  Value made[9]{};
  if (on_gpu) unread(q, made, by_cudnn ? 0 : 1, by_cudnn ? shim().i64 : shim().u64);
  free_arguments(form.types, stack);
  std::copy_n(made, on_gpu ? 9 : 2, stack);
  stack[0] = out.value(), stack[1] = lse.value();
  if (on_gpu) stack[4] = std::bit_cast<Value>(lengths[0]), stack[5] = std::bit_cast<Value>(lengths[1]);
  return true;
}

bool differentiate(const Form& form, Value* stack) {
  const Call given(form, stack);
  const View grad_o(given.tensor(form.q - 1)), q(given.tensor(form.q)), k(given.tensor(form.q + 1)),
      v(given.tensor(form.q + 2)), o(given.tensor(form.q + 3));
  View lse(given.tensor(form.q + 4));
  const View* const inputs[] = {&q, &k, &v};
  if (!are_usual(q, k, v)) return false;
  for (const View* one : inputs)
    if (!is_ordered(one->tensor)) return false;
  lse.tensor.ndim = 3;
  const std::optional<View> mask = given.mask() ? std::optional<View>(given.mask()) : std::nullopt;
  Entry* const entry = entry_of(given.asked(mask ? &*mask : nullptr));
  if (!entry) return false;
  Owned grads[3];
  for (std::size_t i = 0; i < 3; ++i) grads[i] = made_like(form, *inputs[i], inputs[i]->tensor.shape[3]);
  const View dq(grads[0]), dk(grads[1]), dv(grads[2]);
  attune_call call{};
  call.pass = ATTUNE_BACKWARD;
  call.q = &q.tensor, call.k = &k.tensor, call.v = &v.tensor, call.o = &o.tensor, call.lse = &lse.tensor;
  call.grad_o = &grad_o.tensor, call.dq = &dq.tensor, call.dk = &dk.tensor, call.dv = &dv.tensor;
  const attune_tensor *const captures[] = {mask ? &mask->tensor : nullptr}, *const not_wanted[] = {nullptr};
  call.captures = captures, call.n_captures = mask ? 1 : 0;
  call.captured_grads = not_wanted, call.n_captured_grads = call.n_captures;
  run(*entry, call, false);
  free_arguments(form.types, stack);
  for (std::size_t i = 0; i < 3; ++i) stack[i] = grads[i].value();
  return true;
}

using Direction = bool (*)(const Form& form, Value* stack);

/// What attune's kernels refuse, the operator of the same name among attune's computes or refuses. It has no lengths
/// among its results: torch 2.11 takes the types of an operator's results in the opposite order.
void call_slowly(const Form& form, Value* stack) {
  const bool with_lengths = &form == &flash || &form == &cudnn;
  std::int64_t lengths[2]{};
  for (int i = 0; i < 2 && with_lengths; ++i) {
    std::int64_t rank = 0, *sizes = nullptr;
    const auto tensor = reinterpret_cast<Shim::Tensor>(stack[form.q + i]);
    check(shim().get_dim(tensor, &rank) | shim().get_sizes(tensor, &sizes), "get_sizes");
    if (rank > 2) lengths[i] = sizes[2];
  }
  check(shim().call((std::string("attune::") + form.name).c_str(), "", stack, shim_version), form.name);
  if (!with_lengths) return;
  std::copy_backward(stack + 4, stack + 7, stack + 9);
  for (int i = 0; i < 2; ++i) stack[4 + i] = std::bit_cast<Value>(lengths[i]);
}

/// Calls torch's own kernel, which attune's has replaced, past the dispatcher. False without one, or if it fails.
template <class... Arguments>
bool call_own(std::int32_t (*own)(Arguments...), const Form& form, Value* stack) {
  if (!own) return false;
  const std::size_t inputs = std::strlen(form.types);
  Value made[9]{};
  std::size_t at = 0;
  const auto next = [&]<class T>(std::type_identity<T>) {
    Value* const place = at < inputs ? stack + at : made + (at - inputs);
    const bool is_result = at++ >= inputs;
    if constexpr (std::is_pointer_v<T>)
      return is_result ? reinterpret_cast<T>(place) : reinterpret_cast<T>(*place);
    else if constexpr (std::is_same_v<T, std::int32_t>)
      return std::int32_t{flag_of(*place)};
    else
      return std::bit_cast<T>(*place);
  };
  const std::tuple<Arguments...> arguments{next(std::type_identity<Arguments>{})...};
  if (std::apply(own, arguments) != 0) return false;
  free_arguments(form.types, stack);
  std::copy_n(made, sizeof...(Arguments) - inputs, stack);
  return true;
}

template <const Form& form, Direction direction, auto own>
void kernel(Value* stack, std::uint64_t, std::uint64_t) {
  bool taken = false;
  Reason why = Reason::none;
  try {
    const Call given(form, stack);
    if (!engine_is_chosen()) {
      why = given.reason();
      const bool is_known = (warned<form> & static_cast<unsigned>(why)) != 0;
      if (why == Reason::none)
        taken = direction(form, stack);
      else if (is_known && given.is_at_home())
        taken = call_own(shim().*own, form, stack);
    }
  } catch (const std::exception&) {  // nothing is on the stack yet: the other operator finds the mistake again
  }
  if (taken) return;
  call_slowly(form, stack);
  warned<form> |= static_cast<unsigned>(why);
}

struct Placed {
  const Form& form;
  const char* key;
  Shim::Kernel kernel;
  std::atomic<unsigned>& warned;
};
template <const Form& form, Direction direction, auto own>
const Placed placed{form, form.by_position ? "CPU" : "CUDA", kernel<form, direction, own>, warned<form>};
const Placed* const all[] = {
    &placed<cpu, attend, &Shim::own_cpu>,     &placed<cpu_backward, differentiate, &Shim::own_cpu_backward>,
    &placed<flash, attend, &Shim::own_flash>, &placed<flash_backward, differentiate, &Shim::own_flash_backward>,
    &placed<cudnn, attend, &Shim::own_cudnn>, &placed<cudnn_backward, differentiate, &Shim::own_cudnn_backward>};
std::vector<Shim::Library> libraries;  // guarded by the GIL

}  // namespace

bool activate_torch(const std::vector<std::string>& operators, const std::optional<std::string>& key) {
  if (!shim().implement) return false;
  for (const Placed* const one : all) {
    if (std::ranges::find(operators, one->form.name) == operators.end()) continue;
    one->warned = 0;
    Shim::Library library = nullptr;
    check(shim().library("aten", key ? key->c_str() : one->key, __FILE__, __LINE__, &library), "library");
    libraries.push_back(library);
    check(shim().implement(library, one->form.name, one->kernel, shim_version), one->form.name);
  }
  return true;
}

void deactivate_torch() {
  for (Shim::Library library : std::exchange(libraries, {})) check(shim().delete_library(library), "library");
}

void learn_torch(Handle& handle, const Asked& asked) {
  if (entry_of(asked) || count_of_known == most_known) return;
  auto made = std::make_unique<Known>();
  made->asked = asked;
  made->entry.attention = handle.shared();
  known.add(std::move(made));
  ++count_of_known;
}

}  // namespace attune::python
