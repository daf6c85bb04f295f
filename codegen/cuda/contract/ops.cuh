// codegen/cuda/contract/ops.cuh — what the operations of ir/ops.def mean on the device; no headers, so that sources
// compile fast
#pragma once

#include "codegen/cuda/contract/types.cuh"
#include "codegen/cuda/ptx/arithmetic.cuh"

namespace attune {

__device__ inline float f32(e4m3 x) {
  const unsigned magnitude = x.bits & 0x7fu;
  // Below 8, steps are 2^-9, like those of 2^14. 0x7f is NaN, and there is no infinity.
  const float number = magnitude < 8 ? __uint_as_float(0x46800000u | magnitude) - 16384.0f
                                     : __uint_as_float((magnitude << 20) + (120u << 23));
  return __uint_as_float((x.bits & 0x80u) << 24 | (magnitude == 0x7f ? 0x7fc00000u : __float_as_uint(number)));
}
__device__ inline float f32(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ inline float f32(f16 x) { return f32_of_f16(x.bits); }

constexpr float inf = __builtin_bit_cast(float, 0x7f800000u);
constexpr float nan = __builtin_bit_cast(float, 0x7fc00000u);

// ---- Int: an int that wraps, divides by anything and shifts by anything ---------------------------------------------

/// `step` is 0 except for positions in unrolled loops and expressions linear in these positions. There it is a
/// constant, next to a base that the whole loop shares and computes once.
struct Int {
  int base, step;

  Int() = default;
  __host__ __device__ constexpr Int(int x) : base(x), step(0) {}
  __host__ __device__ constexpr Int(int base, int step) : base(base), step(step) {}
  __host__ __device__ constexpr explicit operator int() const { return i(); }
  __host__ __device__ constexpr int i() const { return static_cast<int>(bits()); }

  using Bits = unsigned;
  __host__ __device__ constexpr Bits bits() const { return static_cast<Bits>(base) + static_cast<Bits>(step); }
  static __device__ constexpr Int of(Bits x) { return static_cast<int>(x); }
  static __device__ constexpr int plus(int x, int y) {
    return static_cast<int>(static_cast<Bits>(x) + static_cast<Bits>(y));
  }
  static __device__ constexpr int minus(int x, int y) {
    return static_cast<int>(static_cast<Bits>(x) - static_cast<Bits>(y));
  }
};

/// An Int as an argument of a source: it has no step.
struct Word {
  int value;
  __device__ operator Int() const { return value; }
};

__device__ constexpr Int operator+(Int x, Int y) { return {Int::plus(x.base, y.base), Int::plus(x.step, y.step)}; }
__device__ constexpr Int operator-(Int x, Int y) { return {Int::minus(x.base, y.base), Int::minus(x.step, y.step)}; }
__device__ constexpr Int operator*(Int x, Int y) { return Int::of(x.bits() * y.bits()); }
__device__ constexpr Int operator-(Int x) { return {Int::minus(0, x.base), Int::minus(0, x.step)}; }
__device__ constexpr Int operator~(Int x) { return ~x.i(); }
__device__ constexpr Int operator&(Int x, Int y) { return x.i() & y.i(); }
__device__ constexpr Int operator|(Int x, Int y) { return x.i() | y.i(); }
__device__ constexpr Int operator^(Int x, Int y) { return x.i() ^ y.i(); }
__device__ constexpr Int operator<<(Int x, Int y) { return Int::of(x.bits() << (y.i() & 31)); }
__device__ constexpr Int operator>>(Int x, Int y) { return x.i() >> (y.i() & 31); }
// Towards 0; x / 0 and x % 0 are 0. INT_MIN / -1 wraps.
__device__ constexpr Int operator/(Int x, Int y) {
  if (y.i() == -1) return -x;
  return y.i() == 0 ? 0 : x.i() / y.i();
}
__device__ constexpr Int operator%(Int x, Int y) { return y.i() == 0 || y.i() == -1 ? 0 : x.i() % y.i(); }

__device__ constexpr bool operator==(Int x, Int y) { return x.i() == y.i(); }
__device__ constexpr bool operator!=(Int x, Int y) { return x.i() != y.i(); }
__device__ constexpr bool operator<(Int x, Int y) { return x.i() < y.i(); }
__device__ constexpr bool operator<=(Int x, Int y) { return x.i() <= y.i(); }
__device__ constexpr bool operator>(Int x, Int y) { return x.i() > y.i(); }
__device__ constexpr bool operator>=(Int x, Int y) { return x.i() >= y.i(); }

/// && and || without a branch.
__device__ constexpr bool both(bool x, bool y) { return (static_cast<int>(x) & static_cast<int>(y)) != 0; }
__device__ constexpr bool either(bool x, bool y) { return (static_cast<int>(x) | static_cast<int>(y)) != 0; }

/// An Int as a float: a factor multiplies both parts, and steps cost one multiply-add.
struct Slope {
  float base, step;
  __device__ operator float() const { return step == 0.0f ? base : base + step; }
  friend __device__ float operator*(Slope x, float y) {
    const float base = __fmul_rn(x.base, y);
    return x.step == 0.0f ? base : __fmaf_rn(x.step, y, base);
  }
  friend __device__ float operator*(float x, Slope y) { return y * x; }
};

__device__ constexpr bool rounds_down(Int x, Int y) { return (x % y).i() != 0 && (x.i() < 0) != (y.i() < 0); }
__device__ constexpr Int floordiv(Int x, Int y) { return x / y - Int(rounds_down(x, y)); }
__device__ constexpr Int floormod(Int x, Int y) { return x % y + (rounds_down(x, y) ? y : Int(0)); }

// ---- conversions, choices, least and greatest -----------------------------------------------------------------------

__device__ inline float f32(float x) { return x; }
/// Exact below 2^24, as an Int and as its parts.
__device__ inline Slope f32(Int x) { return {__int2float_rn(x.base), x.step == 0 ? 0.0f : __int2float_rn(x.step)}; }
__device__ constexpr float f32(bool x) { return x ? 1.0f : 0.0f; }
/// Truncates and saturates; NaN gives 0.
__device__ inline Int i32(float x) { return __float2int_rz(x); }
__device__ constexpr Int i32(Int x) { return x; }
__device__ constexpr Int i32(bool x) { return x ? 1 : 0; }

__device__ constexpr float where(bool c, float x, float y) { return c ? x : y; }
__device__ constexpr Int where(bool c, Int x, Int y) { return c ? x : y; }
__device__ constexpr Int where(bool c, int x, int y) { return c ? x : y; }
__device__ constexpr bool where(bool c, bool x, bool y) { return c ? x : y; }

// If one operand is NaN, the result is the other one; -0 is below 0. So the instructions are defined (PTX: min, max).
__device__ inline float min(float x, float y) { return fminf(x, y); }
__device__ inline float max(float x, float y) { return fmaxf(x, y); }
__device__ constexpr int min(int x, int y) { return y < x ? y : x; }
__device__ constexpr int max(int x, int y) { return y > x ? y : x; }
__device__ constexpr Int min(Int x, Int y) { return min(x.i(), y.i()); }
__device__ constexpr Int max(Int x, Int y) { return max(x.i(), y.i()); }
__device__ inline float clamp(float x, float lo, float hi) { return min(max(x, lo), hi); }
__device__ constexpr Int clamp(Int x, Int lo, Int hi) { return min(max(x, lo), hi); }

__device__ inline float abs(float x) { return fabsf(x); }
__device__ constexpr Int abs(Int x) { return x.i() < 0 ? -x : x; }
__device__ inline float floor(float x) { return floorf(x); }
__device__ inline float ceil(float x) { return ceilf(x); }
__device__ inline float trunc(float x) { return truncf(x); }
/// Halves away from 0.
__device__ inline float round(float x) { return roundf(x); }
/// 2 ulp.
__device__ inline float erf(float x) { return erff(x); }

/// body(0) + body(1) + ... + body(count - 1), in this order.
template <int count, class Body>
__device__ inline auto sum(Body body) {
  decltype(body(Int(0)) + body(Int(0))) total = 0;
  for (int i = 0; i < count; ++i) total = total + body(Int(i));
  return total;
}

// ---- random: Philox 4x32 as in ir/eval.h ----------------------------------------------------------------------------

/// ir::philox of the counter {c0, c1, c2, c3} and the key {k0, k1}.
template <int rounds>
__device__ inline void philox(unsigned& c0, unsigned& c1, unsigned& c2, unsigned& c3, unsigned k0, unsigned k1) {
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    const unsigned long long even = wide_product(0xD2511F53u, c0), odd = wide_product(0xCD9E8D57u, c2);
    c0 = static_cast<unsigned>(odd >> 32) ^ c1 ^ k0;
    c1 = static_cast<unsigned>(odd);
    c2 = static_cast<unsigned>(even >> 32) ^ c3 ^ k1;
    c3 = static_cast<unsigned>(even);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

/// Uniform in [0, 1), and depends only on these numbers.
__device__ inline float random(Int seed, Int b, Int h, Int q, Int kv) {
  unsigned c0 = static_cast<unsigned>(kv.i()) >> 2, c1 = static_cast<unsigned>(q.i()),
           c2 = static_cast<unsigned>(h.i()), c3 = static_cast<unsigned>(b.i());
  philox<10>(c0, c1, c2, c3, static_cast<unsigned>(seed.i()), 0);
  const unsigned low = kv.i() & 1 ? c1 : c0, high = kv.i() & 1 ? c3 : c2;
  return static_cast<float>((kv.i() & 2 ? high : low) >> 8) * 0x1p-24f;
}

/// The words that decide on 16 keys.
struct FourWords {
  unsigned x[4];
};
__device__ inline FourWords words_of(Int seed, Int b, Int h, Int q, unsigned sixteen) {
  FourWords w{{sixteen, static_cast<unsigned>(q.i()), static_cast<unsigned>(h.i()), static_cast<unsigned>(b.i())}};
  philox<7>(w.x[0], w.x[1], w.x[2], w.x[3], static_cast<unsigned>(seed.i()), 1);
  return w;
}

/// True for n of 65536 pairs.
__device__ inline bool kept(Int seed, Int n, Int b, Int h, Int q, Int kv) {
  const FourWords w = words_of(seed, b, h, q, static_cast<unsigned>(kv.i()) >> 4);
  unsigned own = 0, shared = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned x = w.x[i], lane = kv.i() & 15;
    own |= (x >> lane & 0x10001u) << i;
    shared |= ((__funnelshift_r(x, x, lane + 5) ^ __funnelshift_r(x, x, lane + 11)) & 0x10001u) << i;
  }
  const unsigned u = ((own | own >> 12) & 0xff) << 8 | ((shared | shared >> 12) & 0xff);
  return static_cast<int>(u) < n.i();
}

/// kept() of 32 pairs, one bit each, the lowest key first: the 16 keys of block `low`, then those of `high`.
__device__ inline unsigned kept_word(Int n, const FourWords& low, const FourWords& high) {
  const unsigned share = static_cast<unsigned>(min(max(n.i(), 0), 65536));
  // `below`: the bits of u so far are below those of share.
  const auto compared = [&](unsigned below, unsigned bits, int nth) {
    const unsigned of_share = 0u - (share >> nth & 1);
    return (of_share & ~bits) | (below & ~(bits ^ of_share));
  };
  // Bits that pairs share are those of x ^ (x rotated by 6), rotated by 5. The two halves are compared where they lie,
  // which takes fewer instructions than to put those of both blocks side by side.
  const auto of_shared = [&](const FourWords& w) {
    unsigned below = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) below = compared(below, w.x[i] ^ __funnelshift_r(w.x[i], w.x[i], 6), i);
    below = __byte_perm(below, 0, 0x1032);
#pragma unroll
    for (int i = 0; i < 4; ++i) below = compared(below, w.x[i] ^ __funnelshift_r(w.x[i], w.x[i], 6), 4 + i);
    return __funnelshift_r(below, below, 16 + 5);
  };
  constexpr unsigned lower = 0x5410, upper = 0x7632;
  unsigned below = __byte_perm(of_shared(low), of_shared(high), lower);
#pragma unroll
  for (int i = 0; i < 4; ++i) below = compared(below, __byte_perm(low.x[i], high.x[i], lower), 8 + i);
#pragma unroll
  for (int i = 0; i < 4; ++i) below = compared(below, __byte_perm(low.x[i], high.x[i], upper), 12 + i);
  return share >> 16 ? ~0u : below;
}

// ---- captured tensors -----------------------------------------------------------------------------------------------

/// An element in the language's type.
__device__ inline float seen(const float* at) { return __ldg(at); }
__device__ inline float seen(const e4m3* at) { return f32(e4m3{__ldg(&at->bits)}); }
__device__ inline float seen(const double* at) { return static_cast<float>(__ldg(at)); }
__device__ inline float seen(const f16* at) { return f32(f16{__ldg(&at->bits)}); }
__device__ inline float seen(const bf16* at) { return f32(bf16{__ldg(&at->bits)}); }
__device__ inline Int seen(const int* at) { return __ldg(at); }
__device__ inline Int seen(const long long* at) { return static_cast<int>(__ldg(at)); }
__device__ inline Int seen(const short* at) { return __ldg(at); }
__device__ inline Int seen(const signed char* at) { return __ldg(at); }
__device__ inline Int seen(const unsigned char* at) { return __ldg(at); }
/// A byte that is true unless it is 0; a `const bool*` may not point to other bytes than 0 and 1.
enum class Flag : unsigned char {};
__device__ inline bool seen(const Flag* at) { return __ldg(reinterpret_cast<const unsigned char*>(at)) != 0; }

/// clamped: indices outside the tensor are clamped into it. inside: no index is outside, and the last stride is 1.
enum class Reads { clamped, inside };

/// The host fills these too: see user_bytes in codegen/source/source.h. Strides are long long if offsets need more than
/// an int, which costs registers: a kernel that reads a table per pair spilled 104 bytes with long long, none with int.
template <class T, int rank, class Stride = int, Reads reads = Reads::clamped>
struct Capture {
  const T* data;
  Stride stride[rank];  ///< elements
  int last[rank];       ///< the largest index

  template <class... Index>
  __device__ auto operator()(Index... index) const {
    static_assert(sizeof...(Index) == rank);
    const Int at[rank] = {index...};
    if constexpr (reads == Reads::inside) {
      // Steps are constants, which become part of the load.
      const T* one = data + at[rank - 1].base;
#pragma unroll
      for (int d = 0; d < rank - 1; ++d) one += at[d].base * stride[d];
#pragma unroll
      for (int d = 0; d < rank - 1; ++d) one = further(one, at[d].step * stride[d]);
      return seen(further(one, at[rank - 1].step));
    } else {
      Stride offset = 0;
#pragma unroll
      for (int d = 0; d < rank; ++d) offset += min(max(at[d].i(), 0), last[d]) * stride[d];
      return seen(data + offset);
    }
  }

  /// The elements along the last dimension at these indices of the others, which are clamped.
  template <class... Index>
  __device__ const T* line(Index... index) const {
    static_assert(sizeof...(Index) == rank - 1);
    const Int at[rank] = {index..., 0};
    Stride offset = 0;
#pragma unroll
    for (int d = 0; d < rank - 1; ++d) offset += min(max(at[d].i(), 0), last[d]) * stride[d];
    return data + offset;
  }
  /// Of an element of such a line, for elements of 16 bits. The column is not negative.
  __device__ unsigned bits(const T* line, int column) const {
    return __ldg(&line[min(column, last[rank - 1]) * stride[rank - 1]].bits);
  }
  /// True if no index of the line is clamped.
  template <class... Index>
  __device__ bool holds_line(Index... index) const {
    const Int at[rank] = {index..., 0};
    bool out = true;
#pragma unroll
    for (int d = 0; d < rank - 1; ++d) out = out && at[d].i() >= 0 && at[d].i() <= last[d];
    return out;
  }
  /// In the type of offsets into this tensor.
  __device__ static Stride offset_of(long long elements) { return static_cast<Stride>(elements); }
  __device__ int columns() const { return last[rank - 1] + 1; }
  /// True if lines consist of 16 bytes that can be copied at once.
  __device__ bool copies_lines() const {
    constexpr int unit = 16 / sizeof(T);
    bool out = stride[rank - 1] == 1 && reinterpret_cast<unsigned long long>(data) % 16 == 0 && columns() % unit == 0;
#pragma unroll
    for (int d = 0; d < rank - 1; ++d) out = out && stride[d] % unit == 0;
    return out;
  }

  /// The element's number, counted along the last dimension first, as if the tensor were contiguous.
  template <class... Index>
  __device__ long long place(Index... index) const {
    const Int at[rank] = {index...};
    long long out = 0;
#pragma unroll
    for (int d = 0; d < rank; ++d) out = out * (last[d] + 1) + min(max(at[d].i(), 0), last[d]);
    return out;
  }

  /// True if this element may be read without clamping.
  template <class... Index>
  __device__ bool holds(Index... index) const {
    const Int at[rank] = {index...};
    bool out = stride[rank - 1] == 1;
#pragma unroll
    for (int d = 0; d < rank; ++d) out = out && at[d].i() >= 0 && at[d].i() <= last[d];
    return out;
  }
};
template <class T, class Stride, Reads reads>
struct Capture<T, 0, Stride, reads> {
  const T* data;

  __device__ auto operator()() const { return seen(data); }
  __device__ long long place() const { return 0; }
};

/// For decltype: the type of a captured tensor's elements.
template <class T, int rank, class Stride, Reads reads>
T element_of(const Capture<T, rank, Stride, reads>&);

/// A condition linear in q and kv that holds at the corners of a tile holds within the tile.
template <class Fn>
__device__ inline bool at_corners(Int q_begin, Int q_end, Int kv_begin, Int kv_end, Fn holds) {
  return holds(q_begin, kv_begin) && holds(q_end - 1, kv_begin) && holds(q_begin, kv_end - 1) &&
         holds(q_end - 1, kv_end - 1);
}

/// The value of another lane.
__device__ inline float of_lane(float x, int lane) { return __shfl_sync(~0u, x, lane); }
__device__ inline Int of_lane(Int x, int lane) { return __shfl_sync(~0u, x.i(), lane); }
__device__ inline bool of_lane(bool x, int lane) { return __shfl_sync(~0u, x, lane); }

// ---- functions within 2 ulp, but for pow and tan: 4 -----------------------------------------------------------------
// These are the CUDA toolkit's. They may flush denormals to 0.

namespace exact {

__device__ inline float sqrt(float x) { return __fsqrt_rn(x); }
__device__ inline float rsqrt(float x) { return rsqrtf(x); }
__device__ inline float exp(float x) { return expf(x); }
__device__ inline float exp2(float x) { return exp2f(x); }
__device__ inline float log(float x) { return logf(x); }
__device__ inline float log2(float x) { return log2f(x); }
__device__ inline float pow(float x, float y) { return powf(x, y); }
__device__ inline float sin(float x) { return sinf(x); }
__device__ inline float cos(float x) { return cosf(x); }
__device__ inline float tan(float x) { return tanf(x); }
__device__ inline float tanh(float x) { return tanhf(x); }
/// tanh(x) for |x| up to small_tanh_most, without the special-function unit: 1.03 ulp.
constexpr float small_tanh_most = 0.9f;
__device__ inline float small_tanh(float x) {
  const float y = x * x;
  float p = 0.00130395975f;
  for (const float next : {-0.00686005596f, 0.0209041275f, -0.0537214912f, 0.133303598f, -0.333332121f})
    p = __fmaf_rn(p, y, next);
  return __fmaf_rn(x * y, p, x);
}
__device__ inline float sigmoid(float x) { return __frcp_rn(1.0f + expf(-x)); }

}  // namespace exact

// ---- functions of one or two instructions of the special-function unit ----------------------------------------------

namespace fast {

// 1 ulp.
__device__ inline float sqrt(float x) { return approx_sqrt(x); }
// 2^-22.9 of the result.
__device__ inline float rsqrt(float x) { return approx_rsqrt(x); }
// 1 ulp.
__device__ inline float reciprocal(float x) { return approx_reciprocal(x); }
// 2^-22 of the result.
__device__ inline float exp2(float x) { return approx_exp2(x); }
// 2^-22 between 0.5 and 2, elsewhere 2^-22 of the result.
__device__ inline float log2(float x) { return approx_log2(x); }
// (2^-22 + |x| 2^-24) of the result.
__device__ inline float exp(float x) { return exp2(x * 1.44269504f); }
// The error of log2, and 2^-24 of the result.
__device__ inline float log(float x) { return log2(x) * 0.693147181f; }
// 2^-11 of the result.
__device__ inline float tanh(float x) { return approx_tanh(x); }
// The error of exp, and 2 ulp of the result, so that the log of a small one is right; 0.5 + 0.5 tanh(0.5 x) has not.
__device__ inline float sigmoid(float x) { return reciprocal(1.0f + exp(-x)); }

/// |x|^y is off by (1 + |y log2|x||) 2^-22 of the result; zeros, signs and infinities as in C.
__device__ inline float pow(float x, float y) {
  const float magnitude = fabsf(x);
  const bool whole = truncf(y) == y, odd = whole && 2.0f * truncf(0.5f * y) != y;
  float z = magnitude == 1.0f ? 1.0f : exp2(y * log2(magnitude));
  if (odd) z = copysignf(z, x);
  if (x < 0 && !whole && magnitude != inf) z = nan;
  // Whatever the other operand is, even NaN.
  return y == 0 || x == 1.0f ? 1.0f : x != x || y != y ? nan : z;
}

/// x minus a multiple of 2 pi, within 2^-22 if |x| < 2^24; beyond, sin and cos give any value from -1 to 1.
__device__ inline float within_a_turn(float x) {
  const float turns = rintf(x * 0.159154943f);
  return __fmaf_rn(turns, 1.74845553e-7f, __fmaf_rn(turns, -6.28318548f, x));
}
// 2^-20.
__device__ inline float sin(float x) { return approx_sin(within_a_turn(x)); }
// 2^-20.
__device__ inline float cos(float x) { return approx_cos(within_a_turn(x)); }
// 2^-20 (1 + tan^2).
__device__ inline float tan(float x) { return sin(x) * reciprocal(cos(x)); }

}  // namespace fast
}  // namespace attune
