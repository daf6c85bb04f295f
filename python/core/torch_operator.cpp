// python/core/torch_operator.cpp — torch.ops.attune.forward and backward, which compiled graphs call, without Python
#include "python/core/torch_operator.h"

#include <array>
#include <bit>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/core/grown.h"
#include "python/core/torch_call.h"
#include "python/core/torch_tensors.h"

namespace attune::python {
namespace {

using Value = Shim::Value;

/// Where the operators have their arguments. Others follow from these: `q`, k, v; `texts`, of which the fifth are
/// names. `types` are those of free_arguments().
struct Form {
  int q, cu_q, captures, ints, texts, scale;
  const char* types;
};
constexpr Form of_forward{0, 3, 5, 6, 7, 12, "tttooTlxxxxxsnnn"};
constexpr Form of_backward{2, 7, 9, 10, 11, 16, "ootttttooTlxxxxxsnnl"};

/// Attentions that were called before.
struct Known {
  std::string key;
  std::unique_ptr<Entry> entry;
};
constexpr std::size_t most_known = 1024;
constinit std::array<Grown<Known>, most_known> known;  // by hash
std::size_t count_of_known = 0;                        // guarded by the GIL

Grown<Known>& alike(const std::string& key) { return known[std::hash<std::string>()(key) % known.size()]; }

void add_scale(std::string& key, std::optional<double> scale) {
  key += scale ? std::to_string(std::bit_cast<std::uint64_t>(*scale)) : "-";
}

Entry* entry_of(const std::string& key) {
  const Known* const found = alike(key).find([&](const Known& one) { return one.key == key; });
  return found ? found->entry.get() : nullptr;
}

char kind_of(const View& tensor) {
  return tensor.dtype == shim().boolean ? 'b' : tensor.tensor.dtype.code == ATTUNE_INT ? 'i' : 'f';
}

/// A call of an operator, whose arguments are on its stack.
struct Call {
  const Form& form;
  Value* stack;
  std::deque<View> captures{};
  std::vector<const attune_tensor*> captured{};
  std::vector<double> ints{};
  attune_call call{};

  Shim::Tensor tensor(int at) const { return reinterpret_cast<Shim::Tensor>(stack[at]); }
  Shim::Tensor optional(int at) const { return optional_tensor(stack[at]); }

  void add_text(std::string& key, int at) const {
    const char* text = nullptr;
    check(shim().string_text(reinterpret_cast<Shim::String>(stack[at]), &text), "string_c_str");
    key.append(text).push_back('\n');
  }

  /// The attention, if it is known; sets captures and integers of the call.
  Entry* entry() {
    std::string key;
    key.reserve(256);
    for (int i = 0; i < 5; ++i) add_text(key, form.texts + i);
    const List tensors(stack[form.captures]), numbers(stack[form.ints]);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const View& one = captures.emplace_back(reinterpret_cast<Shim::Tensor>(tensors[i]));
      captured.push_back(&one.tensor);
      (key += kind_of(one)) += std::to_string(one.tensor.ndim);
    }
    for (std::size_t i = 0; i < numbers.size(); ++i)
      ints.push_back(static_cast<double>(std::bit_cast<std::int64_t>(numbers[i])));
    const auto* scale = reinterpret_cast<const Value*>(stack[form.scale]);
    add_scale(key, scale ? std::optional(std::bit_cast<double>(*scale)) : std::nullopt);
    call.captures = captured.data(), call.n_captures = captured.size();
    call.params = ints.data(), call.n_params = ints.size();
    return entry_of(key);
  }
};

/// A tensor without elements for a result that nobody asked for; `nth`: results of one call are different tensors.
/// They are made once, because torch takes as long to make one as a tensor of any size, and kept until the process
/// ends.
Owned nothing_of(const View& like, std::int32_t dtype, std::size_t nth) {
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::size_t>;
  static constinit Grown<std::pair<Key, Owned>> all;
  const Key key{like.device_type, like.tensor.device.device_id, dtype, nth};
  const auto* found = all.find([&](const auto& one) { return one.first == key; });
  if (!found) {
    constexpr std::int64_t none = 0, step = 1;
    found = &all.add({key, new_tensor(like, 1, &none, &step, dtype)});
  }
  return Owned(found->second.again());
}

bool attend(Value* stack) {
  Call c{of_forward, stack};
  if (engine_is_chosen() || c.optional(c.form.cu_q)) return false;
  const View q(c.tensor(0)), k(c.tensor(1)), v(c.tensor(2));
  if (!are_usual(q, k, v) || q.tensor.strides[3] != 1) return false;
  Entry* const entry = c.entry();
  if (!entry) return false;
  const bool with_max = (stack[15] & 1) != 0;
  Owned out = empty_like(q, v.tensor.shape[3]), lse = rows_of(q),
        most = with_max ? rows_of(q) : nothing_of(q, shim().f32, 0);
  const View of_out(out), of_lse(lse), of_most(most);
  c.call.q = &q.tensor, c.call.k = &k.tensor, c.call.v = &v.tensor, c.call.o = &of_out.tensor;
  c.call.lse = &of_lse.tensor;
  if (with_max) c.call.max = &of_most.tensor;
  run(*entry, c.call, false);
  free_arguments(c.form.types, stack);
  stack[0] = out.value(), stack[1] = lse.value(), stack[2] = most.value();
  return true;
}

bool is_contiguous(const attune_tensor& t) {
  std::int64_t step = 1;
  for (int i = t.ndim; i-- > 0;) {
    if (t.shape[i] != 1 && t.strides[i] != step) return false;
    step *= t.shape[i];
  }
  return true;
}

/// The gradients of an operator's call: those of q, k and v, then those of the captures.
struct Grads {
  std::vector<Owned> owned{};
  std::deque<View> views{};
  std::vector<const attune_tensor*> written{};

  /// Makes the one of a tensor; false if only torch.empty_like can.
  bool add(const View& like, bool wanted, const View& q) {
    if (wanted && owned.size() < 3 && !is_dense(like.tensor)) return false;
    if (wanted && owned.size() >= 3 && !is_contiguous(like.tensor)) return false;
    const auto rank = static_cast<std::size_t>(like.tensor.ndim);
    owned.push_back(!wanted            ? nothing_of(q, q.dtype, owned.size())
                    : owned.size() < 3 ? empty_like(like, like.tensor.shape[3])
                                       : new_tensor(like, rank, like.tensor.shape, like.tensor.strides, like.dtype));
    written.push_back(wanted ? &views.emplace_back(owned.back()).tensor : nullptr);
    return true;
  }

  Value list() {
    Shim::List out = nullptr;
    check(shim().new_list(owned.size(), &out), "new_list");
    for (Owned& one : owned) check(shim().list_push(out, one.value()), "list_push_back");
    return reinterpret_cast<Value>(out);
  }
};

bool differentiate(Value* stack) {
  Call c{of_backward, stack};
  if (engine_is_chosen() || c.optional(c.form.cu_q) || !c.optional(0)) return false;
  const View grad_o(c.optional(0)), q(c.tensor(2)), k(c.tensor(3)), v(c.tensor(4)), o(c.tensor(5)), lse(c.tensor(6));
  const std::optional<View> grad_lse = c.optional(1) ? std::optional<View>(c.optional(1)) : std::nullopt;
  if (!are_usual(q, k, v) || (grad_lse && grad_lse->dtype != lse.dtype)) return false;
  Entry* const entry = c.entry();
  if (!entry) return false;
  const List wanted(stack[19]);
  if (wanted.size() != 3 + c.captures.size()) return false;
  Grads grads;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const View& like = i == 0 ? q : i == 1 ? k : i == 2 ? v : c.captures[i - 3];
    if (!grads.add(like, (wanted[i] & 1) != 0, q)) return false;
  }
  c.call.pass = ATTUNE_BACKWARD;
  c.call.q = &q.tensor, c.call.k = &k.tensor, c.call.v = &v.tensor, c.call.o = &o.tensor, c.call.lse = &lse.tensor;
  c.call.grad_o = &grad_o.tensor, c.call.grad_lse = grad_lse ? &grad_lse->tensor : nullptr;
  c.call.dq = grads.written[0], c.call.dk = grads.written[1], c.call.dv = grads.written[2];
  c.call.captured_grads = grads.written.data() + 3, c.call.n_captured_grads = c.captures.size();
  run(*entry, c.call, false);
  const Value made = grads.list();
  free_arguments(c.form.types, stack);
  stack[0] = made;
  return true;
}

template <bool (*direction)(Value*)>
void kernel(Value* stack, std::uint64_t, std::uint64_t) {
  bool taken = false;
  try {
    taken = direction(stack);
  } catch (const std::exception&) {  // nothing is on the stack yet: Python finds the mistake again
  }
  if (taken) return;
  const char* const slowly = direction == attend ? "attune::forward_slowly" : "attune::backward_slowly";
  check(shim().call(slowly, "", stack, shim_version), slowly);
}

}  // namespace

bool fill_operators(const std::string& key) {
  if (!shim().implement) return false;
  Shim::Library library = nullptr;  // for as long as the process lives
  check(shim().library("attune", key.c_str(), __FILE__, __LINE__, &library), "library");
  for (const char* name : {"forward", "forward_below"})
    check(shim().implement(library, name, kernel<attend>, shim_version), name);
  check(shim().implement(library, "backward", kernel<differentiate>, shim_version), "backward");
  return true;
}

void learn_operator(Handle& handle, const std::vector<std::string>& texts, const std::string& captures,
                    std::optional<double> scale) {
  std::string key;
  for (const std::string& text : texts) key.append(text).push_back('\n');
  key.append(captures);
  add_scale(key, scale);
  if (entry_of(key) || count_of_known == most_known) return;
  auto made = std::make_unique<Entry>();
  made->attention = handle.shared();
  Grown<Known>& chain = alike(key);
  chain.add({std::move(key), std::move(made)});
  ++count_of_known;
}

}  // namespace attune::python
