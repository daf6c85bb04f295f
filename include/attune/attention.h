// include/attune/attention.h — Score, Mask, Prob, Sink and the Attention they make: compose, run, explain
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <attune/cover.h>
#include <attune/error.h>
#include <attune/executor.h>
#include <attune/expr.h>
#include <attune/tensor.h>

namespace attune {

namespace detail {
/// A part of an attention: one callable, shared by its copies, or none.
template <class R, class... A>
class Part {
 public:
  explicit operator bool() const { return call_ != nullptr; }
  /// The same for copies alone.
  const void* identity() const { return call_.get(); }

 protected:
  template <class F>
  void set(F f) {
    call_ = std::make_shared<const Call>([f](A... at) -> R { return f(std::move(at)...); });
  }
  R call(A... at) const { return (*call_)(std::move(at)...); }

 private:
  using Call = std::function<R(A...)>;
  std::shared_ptr<const Call> call_;
};

/// What may be taken for a callable. Numbers may not, so that `flag && mask` on the host stays C++'s own &&.
template <class F, class Own>
concept Callable = !std::same_as<std::remove_cvref_t<F>, Own> && !std::is_arithmetic_v<F>;
}  // namespace detail

/// What becomes of s = scale * (q . k) before the softmax: a callable (Float s, At at) -> Float.
/// `a | b` is b after a. A score of -inf removes the pair.
class Score : public detail::Part<Float, Float, At> {
 public:
  Score() = default;
  template <class F>
  requires detail::Callable<F, Score> Score(F f) {
    static_assert(std::invocable<const F&, Float, At>, "attune: a score is called with (Float s, At at)");
    if constexpr (std::invocable<const F&, Float, At>) {
      using R = std::remove_cvref_t<std::invoke_result_t<const F&, Float, At>>;
      static_assert(std::convertible_to<R, Float>,
                    "attune: a score returns Float, e.g. s + f32(at.kv - at.q); a condition belongs into where(...)");
      if constexpr (std::convertible_to<R, Float>) set(f);
    }
  }
  Float operator()(Float s, At at) const { return *this ? call(s, at) : s; }
  friend Score operator|(Score first, Score then) {
    return [=](Float s, At at) { return then(first(s, at), at); };
  }
};

/// Which pairs stay: a callable (At at) -> Bool. Masks compose with && || !.
class Mask : public detail::Part<Bool, At> {
 public:
  Mask() = default;
  template <class F>
  requires detail::Callable<F, Mask> Mask(F f) {
    static_assert(std::invocable<const F&, At>, "attune: a mask is called with (At at)");
    if constexpr (std::invocable<const F&, At>) {
      using R = std::remove_cvref_t<std::invoke_result_t<const F&, At>>;
      static_assert(std::same_as<R, Bool> || std::same_as<R, bool>,
                    "attune: a mask returns Bool: compare something, e.g. at.q >= at.kv");
      if constexpr (std::same_as<R, Bool> || std::same_as<R, bool>) set(f);
    }
  }
  Bool operator()(At at) const { return *this ? call(at) : Bool(true); }
  friend Mask operator&&(Mask a, Mask b) {
    return [=](At at) { return a(at) && b(at); };
  }
  friend Mask operator||(Mask a, Mask b) {
    return [=](At at) { return a(at) || b(at); };
  }
  friend Mask operator!(Mask a) {
    return [=](At at) { return !a(at); };
  }
};

/// What becomes of a probability after the softmax: a callable (Float p, At at) -> Float. Dropout is one.
class Prob : public detail::Part<Float, Float, At> {
 public:
  Prob() = default;
  template <class F>
  requires detail::Callable<F, Prob> Prob(F f) {
    static_assert(std::invocable<const F&, Float, At>, "attune: a prob mod is called with (Float p, At at)");
    if constexpr (std::invocable<const F&, Float, At>) {
      using R = std::remove_cvref_t<std::invoke_result_t<const F&, Float, At>>;
      static_assert(std::convertible_to<R, Float>, "attune: a prob mod returns Float, e.g. where(keep, p / rate, 0)");
      if constexpr (std::convertible_to<R, Float>) set(f);
    }
  }
  Float operator()(Float p, At at) const { return *this ? call(p, at) : p; }
  friend Prob operator|(Prob first, Prob then) {
    return [=](Float p, At at) { return then(first(p, at), at); };
  }
};

/// Where a sink sits: one per batch entry and head.
struct SinkAt {
  Int batch, head;
};

/// A logit that joins the softmax's denominator: a callable (SinkAt at) -> Float.
class Sink : public detail::Part<Float, SinkAt> {
 public:
  Sink() = default;
  template <class F>
  requires detail::Callable<F, Sink> Sink(F f) {
    static_assert(std::invocable<const F&, SinkAt>,
                  "attune: a sink is called with (SinkAt at): it knows batch and head, not q and kv");
    if constexpr (std::invocable<const F&, SinkAt>) {
      using R = std::remove_cvref_t<std::invoke_result_t<const F&, SinkAt>>;
      static_assert(std::convertible_to<R, Float>, "attune: a sink returns Float, e.g. logits[at.head]");
      if constexpr (std::convertible_to<R, Float>) set(f);
    }
  }
  Float operator()(SinkAt at) const { return call(at); }
};

/// What computes. `cpu` is the engine for this machine's CPU, `cuda` that for NVIDIA's GPUs; `oracle` the
/// double-precision definition of attention: exact, slow, on the host. `automatic` is the engine for where the tensors
/// are.
enum class Target : std::uint8_t { automatic, cpu, oracle, cuda };

/// q [B, Hq, Sq, D], k [Bk, Hkv, Skv, D], v [Bk, Hkv, Skv, Dv], o [B, Hq, Sq, Dv]; Hq a multiple of Hkv, Bk is B or 1.
/// Packed: [T, H, D] with the sequences' starts in cu_seqlens (i32, [B + 1]), on the host or where q is.
struct Forward {
  Tensor q{}, k{}, v{}, o{};
  Tensor lse{};  ///< optional: f32 or f64 [B, Hq, Sq], packed [Hq, T]
  Tensor max{};  ///< optional: the largest score of each row, shaped like lse
  Tensor cu_seqlens_q{}, cu_seqlens_kv{};
  std::int32_t q_offset = 0;  ///< at.q of the first query
  /// No packed sequence is longer: what one has beyond that is left out. Needed where the starts are a device's, as
  /// these are read by kernels alone, and not checked.
  std::int64_t max_q_len = 0, max_kv_len = 0;
};

/// Any of dq, dk, dv may be left out. Gradients are overwritten, not added to.
struct Backward {
  Tensor q{}, k{}, v{};
  Tensor grad_o{};
  Tensor grad_lse{};  ///< optional
  Tensor o{}, lse{};  ///< what the forward gave; optional: without both of them it is computed again
  Tensor dq{}, dk{}, dv{};
  struct Captured {
    Tensor of;    ///< the captured tensor
    Tensor into;  ///< its gradient, of the same shape
  };
  std::vector<Captured> captured{};
  Tensor cu_seqlens_q{}, cu_seqlens_kv{};
  std::int32_t q_offset = 0;
};

/// What a call may use of this machine, and whom it tells how far it is. All of it may be left out. Executor and
/// progress are of calls on the host.
struct Resources {
  Executor executor{};
  /// Called on the calling thread with the share that is done, in [0, 1], at most about ten times a second.
  std::function<void(double)> progress{};
  /// Memory to work in: at least as many bytes as `workspace` says, from a multiple of 64 on. None: memory of attune's
  /// own during the call.
  std::span<std::byte> workspace{};
  /// Of a device: a CUstream of it, null for the default one. The call is put there and not waited for; its tensors,
  /// captures and workspace (which are the device's memory) must stay until it is done.
  void* stream = nullptr;
  /// Tiles that were listed before, see Attention::cover. None: a call whose mask depends on data lists its own. An
  /// Error where they were listed for other calls. Not looked at on the host.
  Cover cover{};
};

struct Attention;

namespace detail {
struct Lowered;
/// Remembers what an Attention was lowered to, for as long as its parts stay the same.
class Memo {
 public:
  Memo() = default;
  Memo(const Memo& other);
  Memo& operator=(const Memo& other);
  std::shared_ptr<const Lowered> get(const Attention& attention) const;

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Lowered> last_;
};
}  // namespace detail

/// An attention: what is special about yours, everything else as usual. Calls may run at the same time.
struct Attention {
  Score score{};
  Mask mask{};
  Prob prob{};
  Sink sink{};
  std::optional<double> scale{};  ///< default 1 / sqrt(D)
  Target target = Target::automatic;
  /// Of kernels of a GPU; the host does not look at it. true: functions within 2 ulp, and products of f32 by three of
  /// TF32. false: the hardware's functions, and one product of TF32. Default: true for f32, false for 16-bit types.
  std::optional<bool> exact{};
  detail::Memo memo{};

  void operator()(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, Line at = Line::here()) const;
  void run(const Forward& call, Line at = Line::here()) const;
  void run(const Forward& call, const Resources& with, Line at = Line::here()) const;
  void backward(const Backward& call, Line at = Line::here()) const;
  void backward(const Backward& call, const Resources& with, Line at = Line::here()) const;

  /// Compiles what the call will need, so that the call itself compiles nothing. The tensors' data is not looked at.
  void prepare(const Forward& call, Line at = Line::here()) const;
  void prepare(const Backward& call, Line at = Line::here()) const;
  /// How many bytes of memory the call works in, with this executor and this cover.
  std::size_t workspace(const Forward& call, const Resources& with = {}, Line at = Line::here()) const;
  std::size_t workspace(const Backward& call, const Resources& with = {}, Line at = Line::here()) const;

  /// Lists once, on `with.stream`, the tiles that the mask leaves to visit, for many calls such as this one: those
  /// whose mask, captured tensors and parameters of the mask, lengths and q_offset are the same, and whose kernel cuts
  /// tiles of the same size, as kernels for the same types, widths, exactness and kind of score do. Batches and heads
  /// matter where the mask varies with them. The captured tensors must still hold what they held: nobody looks again.
  /// The lists lie in `with.workspace`, which must stay until the last call that uses them is done. Without it they
  /// lie in memory of attune's own, which the last copy of the cover gives back to `with.stream`, behind what that
  /// stream has to do by then: until then the stream must be there; calls on other streams must be done, and graphs
  /// that captured calls with it be gone.
  /// Empty, and for nothing, on the host, for packed sequences, and where a mask needs no lists, as causal ones do.
  Cover cover(const Forward& call, const Resources& with = {}, Line at = Line::here()) const;
  /// How many bytes of the device such lists lie in; 0 where `cover` gives an empty one.
  std::size_t cover_bytes(const Forward& call, Line at = Line::here()) const;

  /// What attune made of it: the expressions, what was simplified and why, levels, what the softmax made free.
  std::string explain() const;
};

}  // namespace attune
