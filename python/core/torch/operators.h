// python/core/torch/operators.h — attune's kernels for operators of torch: attune's own, those that autograd records,
// those that torch's scaled_dot_product_attention chooses among; how their arguments become a call
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/core/torch/call.h"

namespace attune::python {

/// Read and added to without a lock: a child that is forked while another thread holds one finds it locked. Its values
/// stay until the process ends.
template <class T>
class Grown {
 public:
  /// The latest that fits; null if there is none.
  template <class Fits>
  T* find(const Fits& fits) const {
    for (Node* one = latest_.load(std::memory_order_acquire); one; one = one->before)
      if (fits(one->value)) return &one->value;
    return nullptr;
  }
  T& add(T value) {
    auto* const made = new Node{std::move(value), latest_.load(std::memory_order_relaxed)};
    while (!latest_.compare_exchange_weak(made->before, made, std::memory_order_release)) {
    }
    return made->value;
  }

 private:
  struct Node {
    T value;
    Node* before;
  };
  std::atomic<Node*> latest_{nullptr};
};

/// The arguments of operators, each with the names that schemas have for it. Nobody reads the last ones.
inline constexpr std::string_view names_of_arguments =
    "query q;key k;value v;out;lse logsumexp;grad_o grad_out grad_out_;grad_lse;attn_mask attn_bias;scale;dropout_p;"
    "is_causal;return_debug_mask;compute_log_sumexp;wanted grad_input_mask;cu_q cum_seq_q;cu_kv cum_seq_k;max_q;"
    "max_kv max_k;window_size_left;window_size_right;seqused_k;alibi_slopes;page_table block_table;num_splits;"
    "captures;ints;score;with_max;kv_len;q_offsets;o_before;lse_before;fixed_split_size;philox_seed rng_state;"
    "mask prob sink names philox_offset unused";
inline constexpr std::size_t arguments_of_operators = 35;

/// Which of them has this name.
constexpr std::size_t which_argument(std::string_view name) {
  for (std::size_t at = 0, which = 0; at < names_of_arguments.size();) {
    const std::size_t end = std::min(names_of_arguments.find_first_of(" ;", at), names_of_arguments.size());
    if (names_of_arguments.substr(at, end - at) == name) return which;
    which += end < names_of_arguments.size() && names_of_arguments[end] == ';';
    at = end + 1;
  }
  return arguments_of_operators;
}
static_assert(which_argument("unused") == arguments_of_operators - 1);

/// An argument, by its name, which is looked up when attune is compiled.
struct Argument {
  std::size_t which;

  consteval Argument(const char* name) : which(which_argument(name)) {
    if (which == arguments_of_operators) throw "no operator has an argument of this name";
  }
};

/// Where the attention of a call comes from: an attn_bias that is a keeper (see keeper_of), texts among the arguments,
/// or the mask and the flags of torch's own attentions.
enum class Kind { recorded, compiled, activated };
inline constexpr std::string_view names_of_kinds[] = {"recorded", "compiled", "activated"};

struct Operator {
  std::string_view name;
  Kind kind;
  /// A letter for each. o: the output; l: the lse, c: as cuDNN has it, p: as the efficient attention has it; m: the
  /// largest scores; g: a gradient of q, k or v; M: of the mask; G: the list of all; q, k: a length; s, S, i: parts of
  /// a state of random numbers; e: an empty tensor; u: any tensor, as nobody reads it; -: an undefined one. O, L, P: as
  /// o, l, g, in the memory order [batch, positions, heads].
  std::string_view results;
  bool (*own)(const std::string& types, Shim::Value* stack) = nullptr;
};

/// Where the loaded torch has the arguments of an operator, and their letters as of free_arguments().
struct Form {
  std::array<int, arguments_of_operators> places;
  std::string types;
  nb::handle make;  ///< attune.torch's function that makes attentions; kept until the process ends
  /// Calls torch's own kernel of an activated operator past the dispatcher. False if it fails. Null if torch has none.
  bool (*own)(const std::string& types, Shim::Value* stack) = nullptr;
  std::atomic<unsigned> told{0};  ///< the reasons for torch's own kernel of which Python has warned

  int at(Argument of) const { return places[of.which]; }
};

/// Why a call is torch's own, as attune.torch warns of it.
struct Refused {
  std::string why;
  unsigned bit = 0;  ///< of a reason that comes again
  /// A forward and its backward must be refused alike if they drop, because each has to know what the other's kernel
  /// drew. False: this reason may refuse one of them alone, so the user gets an exception.
  bool is_alike = true;
};

/// A call of an operator, whose arguments are on its stack.
class OperatorCall {
 public:
  attune_call call{};
  const Operator& op;
  Form& form;
  Shim::Value* const stack;

  OperatorCall(const Operator& of, Form& in, Shim::Value* values) : op(of), form(in), stack(values) {}

  bool has(Argument of) const { return form.at(of) >= 0; }
  Shim::Value value_of(Argument of) const { return stack[form.at(of)]; }
  bool flag(Argument of) const { return has(of) && (value_of(of) & 1) != 0; }
  char letter(Argument of) const { return form.types[static_cast<std::size_t>(form.at(of))]; }

  /// None where it is not given.
  std::optional<Shim::Value> number(Argument of) const;
  std::int64_t whole(Argument of, std::int64_t otherwise = 0) const {
    const std::optional<Shim::Value> found = number(of);
    return found ? std::bit_cast<std::int64_t>(*found) : otherwise;
  }

  /// Of an argument that there is.
  Shim::Tensor handle(Argument of) const { return reinterpret_cast<Shim::Tensor>(value_of(of)); }
  /// Null if there is none.
  Shim::Tensor tensor(Argument of) const;
  const attune_tensor* read(Argument of) {
    const Shim::Tensor found = tensor(of);
    return found ? add(memory_of(found)) : nullptr;
  }

  /// False for operators of dense tensors, even if their schemas have starts of sequences: a recorded forward returns
  /// any tensor in their places (see Operator::results), and its backward gets that tensor back.
  bool may_be_packed() const { return op.kind == Kind::compiled || has("window_size_left"); }

  /// As [batch, heads, positions, width], where the operator has [batch, positions, heads, width].
  const attune_tensor* by_heads(const attune_tensor* of);

  /// Reads the call's tensors, without captures. False if Python must make the call; throws a Refused if torch must.
  bool read_tensors();

  /// The attention; sets captures and integers of the call. Null if attune.torch does not make one.
  const Entry* entry();

  bool drops() const { return has("dropout_p") && std::bit_cast<double>(value_of("dropout_p")) != 0; }
  /// The forward's state of random numbers, drawn from torch's generator if the call drops: its first word is the seed.
  /// An empty one if the operator has none.
  Made draw();
  /// Adds the seed of a call that drops to its captures.
  void capture_seed(Shim::Tensor state);

  /// Computes. Throws what attune says, or a signal raises.
  void run(const Entry& entry, bool is_recorded);

  /// A new tensor for a result with this letter.
  Made new_result(char of);

  /// With rows of this width, in the memory order [batch, positions, heads].
  Made new_by_position(const attune_tensor& like, std::int64_t width) const;

  /// q, k and v as the operator has them.
  const attune_tensor& input(std::size_t i) const { return *(i == 0 ? q_ : i == 1 ? k_ : v_); }
  const attune_tensor* mask() const { return mask_; }

  /// Frees the arguments and puts the results in their places.
  void give(Shim::Value* results, std::size_t count) {
    free_arguments(form.types.c_str(), stack);
    std::copy_n(results, count, stack);
  }

 private:
  void refuse_by_flags() const;
  void refuse_by_tensors();
  bool is_usual() const;
  /// Of calls of any kind: the engine, whether there is a scale, and the scale.
  static constexpr std::size_t of_all = 3;
  std::array<std::int64_t, of_all> common() const;
  /// Read what describes the attention; `name` is equal for calls of equal ones.
  void read_texts(std::string& name);
  void read_flags(std::string& name);
  const Entry* made(std::string name);

  const attune_tensor* add(const attune_tensor& one) { return &(views_[views_count_++] = one); }

  attune_tensor views_[24];  // not initialized; no operator has more tensors besides captures
  std::size_t views_count_ = 0;
  std::vector<attune_tensor> views_of_captures_;
  std::list<std::array<std::array<std::int64_t, 4>, 2>> turned_;
  const attune_tensor *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *mask_ = nullptr;
  std::vector<const attune_tensor*> captured_;
  std::vector<double> ints_;
  std::array<std::int64_t, of_all + 9> flags_;  ///< as attune.torch's function takes them
  std::shared_ptr<const Entry> made_;
};

/// Whether activated operators compute dropout, from here on.
void take_dropout(bool is_taken);

/// From here on, attune.torch's engine() has chosen this target and this exactness.
void choose_engine(std::int32_t target, std::int32_t exact);

namespace nb = nanobind;

/// Puts a kernel into an operator, `space::name`, for a key of the dispatcher; without a key only asks. `kind`:
/// "recorded", "compiled" or "activated". `arguments`: the name of each and its letter, as of free_arguments();
/// `results`: a letter for each. `make`: attune.torch's function that gives the TorchCall of an operator's call, or
/// says why there is none. False if the operator is not as attune's kernel expects it, or torch has no C ABI of
/// operators.
bool place_operator(const std::string& name, const std::string& key, const std::string& kind,
                    const std::vector<std::pair<std::string, std::string>>& arguments, const std::string& results,
                    nb::object make);
/// Gives the activated operators their own kernels back.
void deactivate_operators();

/// Why the call of an activated operator that is being handed over is torch's own.
std::string why_torch();

}  // namespace attune::python
