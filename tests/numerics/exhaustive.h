// tests/numerics/exhaustive.h — every gradient of a small problem, dense, shared or packed, against differences
#pragma once

#include <attune/attune.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace attune::tests {

/// A small problem. With lengths of sequences it is packed, and ignores b, sq and skv.
struct Sizes {
  std::int64_t b = 1, hq = 2, hkv = 1, sq = 3, skv = 4, d = 3, dv = 2;
  bool kv_shared = false;  ///< k and v have one batch entry
  std::int32_t q_offset = 0;
  std::vector<std::int32_t> q_lens{}, kv_lens{};
};

/// Fills a tensor of f64 with numbers in [low, high).
inline void randomise(const Array<double>& array, std::mt19937& random, double low = -1, double high = 1) {
  std::uniform_real_distribution<double> uniform(low, high);
  for (double& x : array.values()) x = uniform(random);
}

/// Random q, k, v and weights w for L = sum w_o o + sum w_lse lse, and every gradient of L.
class Exhaustive {
 public:
  Exhaustive(const Attention& attention, const Sizes& sizes, unsigned seed = 1)
      : attention_(attention), q_(make(sizes, true, sizes.d)), k_(make(sizes, false, sizes.d)),
        v_(make(sizes, false, sizes.dv)), o_(make(sizes, true, sizes.dv)), lse_(rows(sizes)),
        weight_o_(make(sizes, true, sizes.dv)), weight_lse_(rows(sizes)), cu_q_(starts(sizes.q_lens)),
        cu_kv_(starts(sizes.kv_lens)), packed_(!sizes.q_lens.empty()), q_offset_(sizes.q_offset) {
    attention_.target = Target::oracle;
    std::mt19937 random(seed);
    for (const auto* array : {&q_, &k_, &v_, &weight_o_, &weight_lse_}) randomise(*array, random);
  }

  /// The disagreements, one per line: empty if dq, dk, dv and the gradients of `captured` are right.
  std::string disagreements(const std::vector<Array<double>>& captured = {}, double tolerance = 1e-6) {
    const Array<double> dq = like(q_), dk = like(k_), dv = like(v_);
    std::vector<Array<double>> gradients;
    Backward call{
        .q = q_, .k = k_, .v = v_, .grad_o = weight_o_, .grad_lse = weight_lse_, .dq = dq, .dk = dk, .dv = dv};
    for (const Array<double>& of : captured) {
      gradients.push_back(like(of));
      call.captured.push_back({of, gradients.back()});
    }
    place(call);
    attention_.backward(call);

    std::string out;
    compare("dq", q_, dq, tolerance, out);
    compare("dk", k_, dk, tolerance, out);
    compare("dv", v_, dv, tolerance, out);
    for (std::size_t i = 0; i < captured.size(); ++i)
      compare("d" + captured[i].name(), captured[i], gradients[i], tolerance, out);
    return out;
  }

 private:
  static std::int64_t total(const std::vector<std::int32_t>& lengths) {
    std::int64_t sum = 0;
    for (const std::int32_t n : lengths) sum += n;
    return sum;
  }
  static Array<double> make(const Sizes& s, bool query, std::int64_t width) {
    const std::int64_t heads = query ? s.hq : s.hkv;
    if (!s.q_lens.empty()) return Device::cpu().array<double>({total(query ? s.q_lens : s.kv_lens), heads, width});
    return Device::cpu().array<double>({query || !s.kv_shared ? s.b : 1, heads, query ? s.sq : s.skv, width});
  }
  static Array<double> rows(const Sizes& s) {
    if (!s.q_lens.empty()) return Device::cpu().array<double>({s.hq, total(s.q_lens)});
    return Device::cpu().array<double>({s.b, s.hq, s.sq});
  }
  static Array<std::int32_t> starts(const std::vector<std::int32_t>& lengths) {
    auto out = Device::cpu().array<std::int32_t>({static_cast<std::int64_t>(lengths.size()) + 1});
    for (std::size_t i = 0; i < lengths.size(); ++i) out.data()[i + 1] = out.data()[i] + lengths[i];
    return out;
  }
  static Array<double> like(const Array<double>& a) {
    return {Device::cpu(), std::span(a.tensor().shape).first(static_cast<std::size_t>(a.tensor().rank))};
  }

  template <class Call>
  void place(Call& call) const {
    call.q_offset = q_offset_;
    if (packed_) {
      call.cu_seqlens_q = cu_q_;
      call.cu_seqlens_kv = cu_kv_;
    }
  }

  double loss() const {
    Forward call{.q = q_, .k = k_, .v = v_, .o = o_, .lse = lse_};
    place(call);
    attention_.run(call);
    double sum = 0;
    for (std::size_t i = 0; i < o_.values().size(); ++i) sum += weight_o_.data()[i] * o_.data()[i];
    // An empty row's lse is -inf whatever its inputs are.
    for (std::size_t i = 0; i < lse_.values().size(); ++i)
      if (std::isfinite(lse_.data()[i])) sum += weight_lse_.data()[i] * lse_.data()[i];
    return sum;
  }

  void compare(const std::string& name, const Array<double>& of, const Array<double>& gradient, double tolerance,
               std::string& out) const {
    for (std::size_t i = 0; i < of.values().size(); ++i) {
      double& x = of.data()[i];
      const double middle = x, step = 1e-5;
      x = middle + step;
      const double above = loss();
      x = middle - step;
      const double below = loss();
      x = middle;
      const double difference = (above - below) / (2 * step), got = gradient.data()[i];
      if (!(std::fabs(got - difference) <= tolerance * (1 + std::fabs(difference))))
        out += fmt::format("{}[{}] is {}, and the difference gives {}\n", name, i, got, difference);
    }
  }

  Attention attention_;
  Array<double> q_, k_, v_, o_, lse_, weight_o_, weight_lse_;
  Array<std::int32_t> cu_q_, cu_kv_;
  bool packed_;
  std::int32_t q_offset_;
};

}  // namespace attune::tests
