// include/attune/attention.h — Score, Mask, Prob, Sink and the Attention they make: compose, run, explain
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <attune/cxx20.h>
#include <attune/error.h>
#include <attune/executor.h>
#include <attune/expr.h>
#include <attune/ranks.h>
#include <attune/tensor.h>

namespace attune {

namespace detail {
struct DeviceCover;
}  // namespace detail

/// Made by Attention::cover, passed to calls as Resources::cover. Copies share the lists. By default it is empty.
class Cover {
 public:
  Cover() = default;
  explicit Cover(std::shared_ptr<const detail::DeviceCover> lists) : lists_(std::move(lists)) {}

  /// True if it holds lists.
  explicit operator bool() const { return lists_ != nullptr; }
  const detail::DeviceCover* lists() const { return lists_.get(); }

 private:
  std::shared_ptr<const detail::DeviceCover> lists_;
};

namespace detail {
/// A component of an attention: empty, or one callable that its copies share.
template <class R, class... A>
class Component {
 public:
  explicit operator bool() const { return call_ != nullptr; }
  /// Equal only for copies of one component.
  const void* identity() const { return call_.get(); }

 protected:
  template <class F>
  void set(F f) {
    call_ = std::shared_ptr<const Call>(new Of<F>(std::move(f)));
  }
  R call(A... at) const { return call_->run(std::move(at)...); }

 private:
  // Not a std::function, which every user's file would have to compile.
  struct Call {
    virtual ~Call() = default;
    virtual R run(A... at) const = 0;
  };
  template <class F>
  struct Of final : Call {
    explicit Of(F from) : f(std::move(from)) {}
    R run(A... at) const override { return f(std::move(at)...); }
    F f;
  };
  std::shared_ptr<const Call> call_;
};

/// Anything callable except numbers, so that `flag && mask` on the host stays C++'s own &&.
template <class F, class Own>
concept Callable = !std::same_as<std::remove_cvref_t<F>, Own> && !std::is_arithmetic_v<F>;
}  // namespace detail

/// Changes the score s = scale * (q . k) before the softmax: a callable (Float s, At at) -> Float.
/// `a | b` applies a, then b. A score of -inf removes the pair.
class Score : public detail::Component<Float, Float, At> {
 public:
  Score() = default;
  template <class F>
  requires detail::Callable<F, Score> Score(F f) {
    static_assert(
        std::invocable<const F&, Float, At>,
        "attune: a score is called with (Float s, At at); an error within it, e.g. a name that is not captured, "
        "is reported above");
    if constexpr (std::invocable<const F&, Float, At>) {
      using R = std::remove_cvref_t<std::invoke_result_t<const F&, Float, At>>;
      static_assert(std::convertible_to<R, Float>,
                    "attune: a score returns Float, e.g. s + f32(at.kv - at.q); a condition belongs in where(...)");
      if constexpr (std::convertible_to<R, Float>) set(f);
    }
  }
  Float operator()(Float s, At at) const { return *this ? call(s, at) : s; }
  friend Score operator|(Score first, Score then) {
    return [=](Float s, At at) { return then(first(s, at), at); };
  }
};

/// Selects the pairs to keep: a callable (At at) -> Bool. Masks compose with && || !.
class Mask : public detail::Component<Bool, At> {
 public:
  Mask() = default;
  template <class F>
  requires detail::Callable<F, Mask> Mask(F f) {
    static_assert(std::invocable<const F&, At>, "attune: a mask is called with (At at); an error within it, e.g. a "
                                                "name that is not captured, is reported above");
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

namespace detail {
/// True for a lambda that a Mask can be made from, and false for Mask itself.
template <class F>
concept LikeMask = !std::same_as<F, Mask> && std::invocable<const F&, At> &&
                   std::same_as<std::remove_cvref_t<std::invoke_result_t<const F&, At>>, Bool>;
}  // namespace detail
/// For two lambdas: C++'s own && would convert both to function pointers and give a bool.
template <detail::LikeMask A, detail::LikeMask B>
Mask operator&&(const A& a, const B& b) {
  return Mask(a) && Mask(b);
}
template <detail::LikeMask A, detail::LikeMask B>
Mask operator||(const A& a, const B& b) {
  return Mask(a) || Mask(b);
}

/// Changes a probability after the softmax, as dropout does: a callable (Float p, At at) -> Float.
class Prob : public detail::Component<Float, Float, At> {
 public:
  Prob() = default;
  template <class F>
  requires detail::Callable<F, Prob> Prob(F f) {
    static_assert(
        std::invocable<const F&, Float, At>,
        "attune: a prob mod is called with (Float p, At at); an error within it, e.g. a name that is not captured, "
        "is reported above");
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

/// The coordinates of a sink: there is one per batch entry and head.
struct SinkAt {
  Int batch, head;
};

/// A logit that joins the softmax's denominator: a callable (SinkAt at) -> Float.
class Sink : public detail::Component<Float, SinkAt> {
 public:
  Sink() = default;
  template <class F>
  requires detail::Callable<F, Sink> Sink(F f) {
    static_assert(std::invocable<const F&, SinkAt>,
                  "attune: a sink is called with (SinkAt at): it knows batch and head, not q and kv; an error within "
                  "it, e.g. a name that is not captured, is reported above");
    if constexpr (std::invocable<const F&, SinkAt>) {
      using R = std::remove_cvref_t<std::invoke_result_t<const F&, SinkAt>>;
      static_assert(std::convertible_to<R, Float>, "attune: a sink returns Float, e.g. logits[at.head]");
      if constexpr (std::convertible_to<R, Float>) set(f);
    }
  }
  Float operator()(SinkAt at) const { return call(at); }
};

/// The engine that computes. `cpu` runs on this machine's CPU, `cuda` on NVIDIA GPUs; `oracle` is the double-precision
/// definition of attention: exact, slow, on the host. `automatic` picks the engine for the device that holds the
/// tensors. `emulated` runs the kernels for a GPU on the host, with tensors on the host: slow, for finding mistakes,
/// with an Error for what a GPU does not allow (docs/debugging.md).
struct Target {
  enum class Engine : std::uint8_t { automatic, cpu, oracle, cuda, emulated };
  Engine engine = Engine::automatic;
  // For an emulated GPU: its compute capability times ten, its multiprocessors, and the seed of the order in which its
  // threads run.
  std::uint8_t arch = 0;
  std::uint16_t sms = 0;
  std::uint64_t seed = 0;

  static const Target automatic, cpu, oracle, cuda;
  /// `gpu`: sm_80 or sm_90a, optionally followed by :seed=N and :sms=N. Throws an Error for another name.
  static Target emulated(std::string_view gpu, Line at = Line::here());
  bool operator==(const Target&) const = default;
};
inline constexpr Target Target::automatic{}, Target::cpu{Target::Engine::cpu}, Target::oracle{Target::Engine::oracle},
    Target::cuda{Target::Engine::cuda};

/// q [B, Hq, Sq, D], k [Bk, Hkv, Skv, D], v [Bk, Hkv, Skv, Dv], o [B, Hq, Sq, Dv]; Hq a multiple of Hkv, Bk is B or 1.
/// Packed: [T, H, D] with the sequences' starts in cu_seqlens (i32, [B + 1]), on the host or on q's device. Packed
/// queries may read keys that are not packed: then only cu_seqlens_q is given.
struct Forward {
  Tensor q{}, k{}, v{}, o{};
  Tensor lse{};  ///< optional: f32 or f64 [B, Hq, Sq], packed [Hq, T]
  Tensor max{};  ///< optional: the largest score of each row, shaped like lse
  Tensor cu_seqlens_q{}, cu_seqlens_kv{};
  /// i32 [B], on q's device: the number of keys of each entry. k and v may have room for more keys; that room is never
  /// read and may hold anything.
  Tensor kv_len{};
  /// i32 [B, n], on q's device: k and v are pools of pages [pages, Hkv, page_size, D], and key i of entry b is row i %
  /// page_size of page page_table[b, i / page_size]. Pages may be shared, in any order, and missing (-1) where no query
  /// needs a key. Elsewhere a missing page is an Error on the host; a device takes zeros, or see ATTUNE_CHECK.
  Tensor page_table{};
  std::int32_t q_offset = 0;  ///< at.q of the first query
  Tensor q_offsets{};         ///< i32 [B], on q's device: at.q of each entry's first query, instead of q_offset
  /// at.kv of the first key. at.kv_len = kv_offset + the number of keys.
  std::int32_t kv_offset = 0;
  /// The results of a call over other keys, both or neither. This call merges its results with them, as if one call had
  /// had all keys. They may be o and lse themselves. A sink counts only in the call that has no o_before, and max
  /// covers this call's keys only.
  Tensor o_before{}, lse_before{};
  /// If not 0, the bits of an entry's results do not depend on the rest of the batch (batch invariance): engines split
  /// the entry's keys only at multiples of fixed_split_size, which is a multiple of 128.
  std::int64_t fixed_split_size = 0;
  /// The longest packed sequence; positions beyond it are ignored. Required when cu_seqlens is on a device: only
  /// kernels read cu_seqlens there, and nothing checks it.
  std::int64_t max_q_len = 0, max_kv_len = 0;
  /// Tensors and numbers that this call reads instead of the ones that the attention was made with, in the order of
  /// Attention::captures and ::params, of the same kinds and ranks. Either none, or one for each; an empty Tensor omits
  /// a capture. The attention is lowered again only if a capture has another type than before.
  std::span<const Tensor> captures{};
  std::span<const double> params{};
};

/// Any of dq, dk, dv may be left out. Gradients are overwritten, not added to.
struct Backward {
  Tensor q{}, k{}, v{};
  Tensor grad_o{};
  Tensor grad_lse{};  ///< optional
  Tensor o{}, lse{};  ///< the forward's results, both or neither; without them the forward is computed again
  Tensor dq{}, dk{}, dv{};
  struct Captured {
    Tensor of{};    ///< the captured tensor: the gradient of all captures that are this tensor
    Tensor into{};  ///< its gradient, of the same shape
    int slot = -1;  ///< instead of `of`: the gradient of this one of Attention::captures
  };
  std::vector<Captured> captured{};
  /// Over ranks. true: gradients of captured tensors are summed over all ranks. false: they are sums over this rank's
  /// queries only, for a program that adds them up itself.
  bool sum_captured = true;
  Tensor cu_seqlens_q{}, cu_seqlens_kv{};
  std::int32_t q_offset = 0;
  // As in Forward:
  std::int64_t max_q_len = 0, max_kv_len = 0;
  std::span<const Tensor> captures{};
  std::span<const double> params{};
};

/// A captured tensor or a parameter of an attention's expressions, which calls may bind.
struct Slot {
  std::string name;
  DType dtype = DType::f32;  ///< a parameter is f32 or i32
  int rank = 0;
  bool operator==(const Slot&) const = default;
};

/// What a call may use of this machine, and where it reports progress. Every member is optional. Only calls on the host
/// use executor and progress.
struct Resources {
  Executor executor{};
  /// Called with the fraction done, in [0, 1], at most about ten times a second, and with 1 at the end: on the calling
  /// thread, or, while your own parallel_for runs, on any of its threads, one at a time.
  std::function<void(double)> progress{};
  /// Memory to work in: at least `Attention::workspace` bytes, aligned to 64. Empty: attune allocates for the duration
  /// of the call.
  std::span<std::byte> workspace{};
  /// For calls on a device: a CUstream of that device, null for the default one. The call returns once it is enqueued;
  /// its tensors, captures and workspace (all in device memory) must stay until it is done.
  void* stream = nullptr;
  /// Tile lists made earlier by Attention::cover. Without them, a call whose mask depends on data makes its own. Lists
  /// made for other calls are an Error. The host ignores them.
  Cover cover{};
  /// Which rank holds which positions. If it is not empty, q, k, v, o and their gradients are this rank's, and every
  /// rank makes the call.
  Sharding sharding{};
};

struct Attention;

namespace detail {
struct Lowered;
/// Caches the lowered form of an Attention while its components stay the same.
class Memo {
 public:
  Memo() = default;
  Memo(const Memo& other);
  Memo& operator=(const Memo& other);
  std::shared_ptr<const Lowered> get(const Attention& attention) const;

 private:
  mutable std::atomic<std::uint32_t> busy_{0};  ///< a lock of last_: the number of the process that holds it, or 0
  mutable std::shared_ptr<const Lowered> last_;
};
}  // namespace detail

/// An attention: set what differs from plain attention, leave the rest. Calls may run concurrently.
struct Attention {
  Score score{};
  Mask mask{};
  Prob prob{};
  Sink sink{};
  std::optional<double> scale{};  ///< default 1 / sqrt(D)
  Target target = Target::automatic;
  /// For GPU kernels; the host ignores it. true: functions within 2 ulp, and f32 products as three TF32 products.
  /// false: the hardware's functions, and one TF32 product. Default: true for f32, false for 16-bit types.
  std::optional<bool> exact{};
  detail::Memo memo{};

  void operator()(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, Line at = Line::here()) const;
  void run(const Forward& call, Line at = Line::here()) const;
  void run(const Forward& call, const Resources& with, Line at = Line::here()) const;
  void backward(const Backward& call, Line at = Line::here()) const;
  void backward(const Backward& call, const Resources& with, Line at = Line::here()) const;

  /// Compiles the kernels that the call needs, so that the call itself compiles nothing. Does not read the tensors'
  /// data.
  void prepare(const Forward& call, Line at = Line::here()) const;
  void prepare(const Backward& call, Line at = Line::here()) const;
  /// Starts to compile them on another thread, and returns. A call that comes earlier waits for its kernels; mistakes
  /// are reported by the call. If a call is the first one that binds captures of these types, the thread calls the
  /// components, which must not refer to anything that may be gone by then. attune::wait() waits for all kernels.
  void prepare_async(const Forward& call) const;
  void prepare_async(const Backward& call) const;
  /// Bytes of working memory the call needs with this executor and this cover.
  std::size_t workspace(const Forward& call, const Resources& with = {}, Line at = Line::here()) const;
  std::size_t workspace(const Backward& call, const Resources& with = {}, Line at = Line::here()) const;

  /// Lists once, on `with.stream`, the tiles that the mask leaves to visit, for many calls like this one. A call can
  /// use the lists if it has the same mask, the same captured tensors and parameters in the mask, the same lengths and
  /// q_offset, and a kernel with the same tile size; kernels for the same types, widths, exactness and kind of score
  /// have that. Batch and heads must match too where the mask varies with them. The captured tensors must keep their
  /// contents: later calls do not check them.
  /// The lists lie in `with.workspace`, which must stay until the last call that uses them is done. Without a workspace
  /// attune allocates them, and the last copy of the cover frees them in `with.stream`'s order. At that moment the
  /// stream must still exist, calls on other streams must be done, and graphs that captured calls with the cover must
  /// be gone. Returns an empty cover, at no cost, on the host, for packed sequences, and where a mask, such as a causal
  /// one, needs no lists.
  Cover cover(const Forward& call, const Resources& with = {}, Line at = Line::here()) const;
  /// Bytes of device memory the lists take; 0 where `cover` returns an empty one.
  std::size_t cover_bytes(const Forward& call, Line at = Line::here()) const;

  /// The captured tensors and parameters, in the order in which score, mask, prob and sink first read them.
  std::vector<Slot> captures() const;
  std::vector<Slot> params() const;

  /// The compiler's result as text: the expressions, the simplifications and their reasons, levels, and the work that
  /// the softmax makes unnecessary.
  std::string explain() const;
};

/// Returns when all kernels that prepare_async has requested so far are compiled, with the kernels that replace
/// first-tier ones, and callbacks of `watch` have run: see docs/first-call.md. A process that ends earlier compiles no
/// further kernels.
void wait();

}  // namespace attune
