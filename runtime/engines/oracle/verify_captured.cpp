// runtime/engines/oracle/verify_captured.cpp — ATTUNE_VERIFY: computes gradients of captured tensors again and compares
// them
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/bind.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/oracle/verify_rows.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime {
namespace {

using compiler::Problem;

/// Compares all elements of the captured tensors' gradients, if the call has few enough pairs.
class VerifyCaptured {
 public:
  VerifyCaptured(const Call& of, const Verified& which)
      : of_(of), call_(of.backward()), p_(of.problem), which_(which), type_(call_.q.dtype),
        unit_(std::max(unit(type_), is_fast(of, which) ? 0x1p-11 : 0.0)) {}

  void operator()() {
    if (call_.captured.empty()) return;
    double pairs = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const Sequence seq = sequence(p_, b);
      pairs += static_cast<double>(p_.q_heads * seq.q_len) * static_cast<double>(seq.kv_len);
    }
    if (pairs > most_pairs)
      return note(watch::Notice::Of::verify, "gradients of captured tensors are not verified: they take all pairs");
    Backward call = call_;
    call.dq = call.dk = call.dv = {};
    const std::vector<CapturedSum> exact = gradients(call);
    // Products are in f32: the effect of one more rounding of q and k to f32.
    const Moved q(call_.q, unit(DType::f32)), k(call_.k, unit(DType::f32));
    call.q = q.tensor;
    call.k = k.tensor;
    const std::vector<CapturedSum> moved = gradients(call);
    for (std::size_t i = 0; i < exact.size(); ++i) compare(exact[i], moved[i]);
  }

 private:
  static constexpr double most_pairs = 1 << 19;

  std::vector<CapturedSum> gradients(const Backward& call) const {
    return oracle_gradients({.mod = of_.mod, .args = of_.args, .problem = p_, .what = call});
  }

  /// A tensor in f64, each element rounded once more, at random.
  struct Moved {
    Moved(const Tensor& from, double by) : numbers(static_cast<std::size_t>(from.size())) {
      tensor = Tensor(numbers.data(), DType::f64, std::span(from.shape).first(static_cast<std::size_t>(from.rank)));
      std::minstd_rand dice(1);
      std::uniform_real_distribution<double> half(-by, by);
      each(tensor, [&](std::size_t n, const Place& at) {
        numbers[n] = load(from, offset(from, at[0], at[1], at[2], at[3])) * (1 + half(dice));
      });
    }
    std::vector<double> numbers;
    Tensor tensor;
  };

  using Place = std::array<std::int64_t, Tensor::max_rank>;
  /// Calls fn(n, place) for each element, in their order.
  template <class Fn>
  static void each(const Tensor& t, const Fn& fn) {
    Place at{}, extent{1, 1, 1, 1};
    std::copy_n(t.shape.begin(), t.rank, extent.begin());
    std::size_t n = 0;
    for (at[0] = 0; at[0] < extent[0]; ++at[0])
      for (at[1] = 0; at[1] < extent[1]; ++at[1])
        for (at[2] = 0; at[2] < extent[2]; ++at[2])
          for (at[3] = 0; at[3] < extent[3]; ++at[3]) fn(n++, at);
  }

  void compare(const CapturedSum& exact, const CapturedSum& moved) const {
    const Tensor& into = exact.asked->into;
    std::uint32_t slot = 0;
    while (!is_of(*exact.asked, of_.args, slot)) ++slot;
    const std::string& name = of_.mod.mod.captures[slot].name;
    each(into, [&](std::size_t n, const Place& at) {
      const double wanted = exact.sum[n], got = load(into, offset(into, at[0], at[1], at[2], at[3]));
      if (!std::isfinite(wanted) || !std::isfinite(moved.sum[n])) return;
      // Each term contains the rounding of p, of ds, and of o in its row's delta.
      const double luck = unit_ * std::sqrt(exact.squares[n]);
      const double allowed = 2 * lucky * luck + lucky * std::abs(moved.sum[n] - wanted) +
                             (2 * unit_ + 2 * unit(into.dtype) + unit_of_exp(type_)) * std::abs(wanted) +
                             std::numeric_limits<float>::min();
      if (std::abs(got - wanted) <= allowed || !std::isfinite(allowed)) return;
      const auto place = std::span(at).first(static_cast<std::size_t>(into.rank));
      refuse(of_, fmt::format("the gradient of {}", name), which_,
             {fmt::format("{}[{}]", name, fmt::join(place, ", ")), got, wanted, std::abs(got - wanted), allowed});
    });
  }

  const Call& of_;
  const Backward& call_;
  const Problem& p_;
  const Verified& which_;
  DType type_;
  double unit_;  ///< rounding unit of the factors of a pair's terms
};

}  // namespace

void verify_captured(const Call& call, const Verified& which) { VerifyCaptured(call, which)(); }

}  // namespace attune::runtime
