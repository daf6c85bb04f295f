// codegen/cuda/emulated/builtins.cuh — CUDA's own words for a host's compiler: included before an emulated kernel's
// page
#pragma once

#include <initializer_list>

#include "codegen/cuda/emulated/machine.h"

/// Static, because programs that link attune have a function of this name.
static attune::emulated::Machine* attune_machine;

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __align__(n) alignas(n)
#ifndef __clang__
#define __builtin_assume(x) static_cast<void>(x)
#endif

#define threadIdx (attune_machine->now->index)
#define blockIdx (attune_machine->now->block)
#define blockDim (attune_machine->now->threads)
#define gridDim (attune_machine->now->blocks)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace attune::emulated {

/// A variable `__shared__ T name` becomes this: see files.cpp of runtime/platform/emulated.
template <class T>
T& shared_variable(const char* name) {
  return *static_cast<T*>(attune_machine->shared_variable(name, sizeof(T), alignof(T)));
}

template <class T>
struct Passed {
  T given, got;
  int from;
};
/// Each lane gets the value of lane `from`, or its own value if that lane does not exist.
template <class T>
T passed(unsigned mask, const char* what, T x, int from, Site at) {
  Passed<T> mine{x, x, from};
  attune_machine->together(
      mask, what,
      [](void* const* parts, unsigned) {
        for (int lane = 0; lane < 32; ++lane)
          if (auto* const one = static_cast<Passed<T>*>(parts[lane]))
            if (one->from >= 0 && one->from < 32 && parts[one->from])
              one->got = static_cast<const Passed<T>*>(parts[one->from])->given;
      },
      &mine, at);
  return mine.got;
}

struct Vote {
  bool yes;
  unsigned all;
};
inline unsigned vote(unsigned mask, const char* what, bool yes, Site at) {
  Vote mine{yes, 0};
  attune_machine->together(
      mask, what,
      [](void* const* parts, unsigned) {
        unsigned all = 0;
        for (int lane = 0; lane < 32; ++lane)
          if (parts[lane] && static_cast<const Vote*>(parts[lane])->yes) all |= 1u << lane;
        for (int lane = 0; lane < 32; ++lane)
          if (parts[lane]) static_cast<Vote*>(parts[lane])->all = all;
      },
      &mine, at);
  return mine.all;
}

template <bool Least, class T>
T reduced(unsigned mask, const char* what, T x, Site at) {
  struct Part {
    T x, out;
  } mine{x, x};
  attune_machine->together(
      mask, what,
      [](void* const* parts, unsigned) {
        T out{};
        bool any = false;
        for (int lane = 0; lane < 32; ++lane)
          if (const auto* one = static_cast<const Part*>(parts[lane])) {
            out = !any || (Least ? one->x < out : one->x > out) ? one->x : out;
            any = true;
          }
        for (int lane = 0; lane < 32; ++lane)
          if (parts[lane]) static_cast<Part*>(parts[lane])->out = out;
      },
      &mine, at);
  return mine.out;
}

template <class To, class From>
To bits_as(From x) {
  return __builtin_bit_cast(To, x);
}

}  // namespace attune::emulated

using attune::emulated::Site;

// ---- a warp ---------------------------------------------------------------------------------------------------------

template <class T>
T __shfl_sync(unsigned mask, T x, int lane, Site at = Site::here()) {
  return attune::emulated::passed(mask, "__shfl_sync", x, lane & 31, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int by, Site at = Site::here()) {
  return attune::emulated::passed(mask, "__shfl_xor_sync", x, attune_machine->now->lane ^ by, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned by, Site at = Site::here()) {
  return attune::emulated::passed(mask, "__shfl_up_sync", x, attune_machine->now->lane - static_cast<int>(by), at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned by, Site at = Site::here()) {
  return attune::emulated::passed(mask, "__shfl_down_sync", x, attune_machine->now->lane + static_cast<int>(by), at);
}
inline unsigned __ballot_sync(unsigned mask, bool yes, Site at = Site::here()) {
  return attune::emulated::vote(mask, "__ballot_sync", yes, at);
}
inline int __any_sync(unsigned mask, bool yes, Site at = Site::here()) {
  return attune::emulated::vote(mask, "__any_sync", yes, at) != 0;
}
inline int __all_sync(unsigned mask, bool yes, Site at = Site::here()) {
  return attune::emulated::vote(mask, "__all_sync", !yes, at) == 0;
}
template <class T>
T __reduce_min_sync(unsigned mask, T x, Site at = Site::here()) {
  return attune::emulated::reduced<true>(mask, "__reduce_min_sync", x, at);
}
template <class T>
T __reduce_max_sync(unsigned mask, T x, Site at = Site::here()) {
  return attune::emulated::reduced<false>(mask, "__reduce_max_sync", x, at);
}
inline void __syncwarp(unsigned mask = ~0u, Site at = Site::here()) {
  attune_machine->together(
      mask, "__syncwarp", [](void* const*, unsigned) {}, nullptr, at);
}
/// Only this thread: any set of threads may run together.
inline unsigned __activemask() { return 1u << attune_machine->now->lane; }

// ---- a block --------------------------------------------------------------------------------------------------------

inline void __syncthreads(Site at = Site::here()) { attune_machine->meet(0, 0, true, false, at); }
inline int __syncthreads_or(int yes, Site at = Site::here()) {
  return attune_machine->meet(0, 0, true, yes != 0, at) != 0;
}
inline void __threadfence() {}
inline unsigned long long __cvta_generic_to_shared(const void* p, Site at = Site::here()) {
  return attune_machine->shared_address(p, at);
}
inline void* __cvta_shared_to_generic(unsigned long long p, Site at = Site::here()) {
  return attune_machine->shared_pointer(static_cast<unsigned>(p), at);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
// One thread runs at a time.
template <class T>
T atomicAdd(T* at, T x) {
  const T before = *at;
  *at = static_cast<T>(before + x);
  return before;
}
template <class T>
T atomicOr(T* at, T x) {
  const T before = *at;
  *at = before | x;
  return before;
}

// ---- numbers --------------------------------------------------------------------------------------------------------

inline unsigned __float_as_uint(float x) { return attune::emulated::bits_as<unsigned>(x); }
inline int __float_as_int(float x) { return attune::emulated::bits_as<int>(x); }
inline float __uint_as_float(unsigned x) { return attune::emulated::bits_as<float>(x); }
inline float __int_as_float(int x) { return attune::emulated::bits_as<float>(x); }
inline double __longlong_as_double(long long x) { return attune::emulated::bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return attune::emulated::bits_as<long long>(x); }
inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
/// Truncates and saturates; NaN gives 0.
inline int __float2int_rz(float x) {
  return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x <= -2147483648.0f ? -2147483647 - 1 : static_cast<int>(x);
}
inline int min(int x, int y) { return y < x ? y : x; }
inline int max(int x, int y) { return y > x ? y : x; }
inline unsigned min(unsigned x, unsigned y) { return y < x ? y : x; }
inline unsigned max(unsigned x, unsigned y) { return y > x ? y : x; }
inline long long min(long long x, long long y) { return y < x ? y : x; }
inline long long max(long long x, long long y) { return y > x ? y : x; }
// -0 is below 0, as PTX defines min and max; the C library's functions give either zero.
inline float fminf(float x, float y) { return y < x || x != x || (y == x && __builtin_signbit(y)) ? y : x; }
inline float fmaxf(float x, float y) { return y > x || x != x || (y == x && __builtin_signbit(x)) ? y : x; }
inline float fabsf(float x) { return __builtin_fabsf(x); }
inline float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
inline float floorf(float x) { return __builtin_floorf(x); }
inline float ceilf(float x) { return __builtin_ceilf(x); }
inline float truncf(float x) { return __builtin_truncf(x); }
inline float roundf(float x) { return __builtin_roundf(x); }
inline float rintf(float x) { return __builtin_rintf(x); }
inline float erff(float x) { return __builtin_erff(x); }
inline float expf(float x) { return __builtin_expf(x); }
inline float exp2f(float x) { return __builtin_exp2f(x); }
inline float logf(float x) { return __builtin_logf(x); }
inline float log2f(float x) { return __builtin_log2f(x); }
inline float powf(float x, float y) { return __builtin_powf(x, y); }
inline float sinf(float x) { return __builtin_sinf(x); }
inline float cosf(float x) { return __builtin_cosf(x); }
inline float tanf(float x) { return __builtin_tanf(x); }
inline float tanhf(float x) { return __builtin_tanhf(x); }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long all = static_cast<unsigned long long>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    // The fourth bit of a selector, which in prmt.b32 asks for copies of a byte's sign, is left out: NVRTC leaves it
    // out.
    const unsigned byte = static_cast<unsigned>(all >> (8 * (selector >> (4 * i) & 7))) & 0xff;
    out |= byte << (8 * i);
  }
  return out;
}

// ---- launches -------------------------------------------------------------------------------------------------------

namespace attune::emulated {

template <class T>
struct Bare {
  using Type = T;
};
template <class T>
struct Bare<const T> {
  using Type = T;
};
template <int... i>
struct Places {};
template <int n, int... i>
struct PlacesOf : PlacesOf<n - 1, n - 1, i...> {};
template <int... i>
struct PlacesOf<0, i...> {
  using Type = Places<i...>;
};
template <class... A, int... i>
inline void call(void (*kernel)(A...), void* const* arguments, Places<i...>) {
  kernel(*static_cast<const typename Bare<A>::Type*>(arguments[i])...);
}
/// Calls a kernel with arguments as a launch hands them over.
template <class... A>
inline void call(void (*kernel)(A...), void* const* arguments) {
  call(kernel, arguments, typename PlacesOf<sizeof...(A)>::Type());
}

/// 0 past the last argument.
template <class... A>
inline unsigned bytes_of_argument(void (*)(A...), unsigned nth) {
  const unsigned all[] = {sizeof(A)..., 0};
  return nth < sizeof...(A) ? all[nth] : 0;
}

}  // namespace attune::emulated
