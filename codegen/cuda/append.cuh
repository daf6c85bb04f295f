// codegen/cuda/append.cuh — new keys and values, put to their places in a cache
//
// A block a new row: append_lanes of its append_threads threads share the row of a head of k or of v. Its bits are
// those that the host stores. Lengths and pages are read here and checked nowhere: rows beyond their entry's room, and
// rows of pages that do not exist, are left out.
#pragma once

#include "args.cuh"
#include "types.cuh"

namespace attune {

// ---- where a row goes --------------------------------------------------------------------------------------------

/// Where a new row comes from and where it goes, as Strided counts batch entries (or pages) and positions.
struct NewRow {
  int from_entry, from_position;
  int into_entry, into_position;
  bool has_place;

  __device__ static NewRow of(const AppendArgs& args, int nth) {
    NewRow out{0, nth, 0, 0, false};
    int b = 0, behind = 0;  // this row, counted from behind the last one
    if (args.starts) {
      b = entry_of(args, nth);
      behind = args.starts[b + 1] - nth;
      if (nth < args.starts[b] || behind <= 0) return out;
    } else {
      b = nth / args.new_rows;
      out.from_entry = b;
      out.from_position = nth - b * args.new_rows;
      behind = args.new_rows - out.from_position;
    }
    const int key = args.kv_lens.at[b * args.kv_lens.stride] - behind;
    if (key < 0 || key >= args.room) return out;
    out.into_entry = b;
    out.into_position = key;
    if (args.pages.at) {
      const int page = key / args.pages.rows;
      out.into_entry = args.pages.at[b * args.pages.entry + page * args.pages.nth];
      out.into_position = key - page * args.pages.rows;
      if (out.into_entry < 0 || out.into_entry >= args.pages.count) return out;
    }
    out.has_place = true;
    return out;
  }

 private:
  /// The last entry that starts no later.
  __device__ static int entry_of(const AppendArgs& args, int row) {
    int first = 0, end = args.batch;
    while (end - first > 1) {
      const int middle = first + (end - first) / 2;
      (args.starts[middle] <= row ? first : end) = middle;
    }
    return first;
  }
};

// ---- elements ----------------------------------------------------------------------------------------------------

/// The bits of a floating type: how many belong to the fraction, and those of infinity.
struct FloatBits {
  int fraction;
  unsigned infinity;
};
__device__ inline FloatBits bits_of(Stored type) {
  return type == Stored::f32   ? FloatBits{23, 0x7f800000u}
         : type == Stored::f16 ? FloatBits{10, ElementOf<f16>::infinity}
                               : FloatBits{7, ElementOf<bf16>::infinity};
}

constexpr unsigned long long wide_infinity = 0x7ffull << 52, wide_fraction = (1ull << 52) - 1;

/// Instructions that convert would not keep the bits of NaN.
__device__ inline double widened_nan(unsigned x, Stored type) {
  const FloatBits of = bits_of(type);
  const unsigned fraction = x & ((1u << of.fraction) - 1), sign = x & (of.infinity + (1u << of.fraction));
  return __longlong_as_double(static_cast<long long>((sign ? 1ull << 63 : 0) | wide_infinity | 1ull << 51 |
                                                     static_cast<unsigned long long>(fraction) << (52 - of.fraction)));
}
__device__ inline unsigned narrowed_nan(unsigned long long x, Stored type) {
  const FloatBits of = bits_of(type);
  return (x >> 63 ? of.infinity + (1u << of.fraction) : 0) | of.infinity | 1u << (of.fraction - 1) |
         static_cast<unsigned>((x & wide_fraction) >> (52 - of.fraction));
}

// Written out: the compiler, told to flush what is denormal in f32, would flush it here too.
__device__ inline double widened(float x) {
  double out;
  asm("cvt.f64.f32 %0, %1;" : "=d"(out) : "f"(x));
  return out;
}
/// Rounded to nearest even.
__device__ inline float narrowed(double x) {
  float out;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(out) : "d"(x));
  return out;
}
/// Rounded to the neighbour whose last bit is 1, so that rounding once more, to fewer bits, is as if rounding once.
__device__ inline float narrowed_to_odd(double x) {
  float out;
  asm("cvt.rz.f32.f64 %0, %1;" : "=f"(out) : "d"(x));
  return widened(out) == x ? out : __uint_as_float(__float_as_uint(out) | 1);
}

/// Every element is a double.
__device__ inline double element(const void* row, long long i, Stored type) {
  if (type == Stored::f64) return static_cast<const double*>(row)[i];
  const unsigned x = type == Stored::f32 ? static_cast<const unsigned*>(row)[i]
                                         : static_cast<const unsigned short*>(row)[i];
  const FloatBits of = bits_of(type);
  const unsigned exponent = x & of.infinity, fraction = x & ((1u << of.fraction) - 1);
  if (exponent == of.infinity && fraction != 0) return widened_nan(x, type);
  return widened(type == Stored::f32 ? __uint_as_float(x) : type == Stored::f16 ? low_of<f16>(x) : low_of<bf16>(x));
}
/// The nearest e4m3, the even one of two, of a number that was rounded to odd. Beyond 448 there is none, and no
/// infinity.
__device__ inline unsigned e4m3_of(float odd) {
  const unsigned bits = __float_as_uint(odd), magnitude = min(bits & 0x7fffffffu, 0x43e00000u),
                 exponent = max(magnitude & 0x7f800000u, 0x3c800000u);  // of 2^-6 at least
  // Adding a power of two 20 binary places above the number leaves its eighths, rounded.
  const unsigned above = exponent + (20u << 23),
                 eighths = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(above)) - above;
  return (bits >> 24 & 0x80) | (((exponent >> 23) - 121) * 8 + eighths);
}

__device__ inline void store(void* row, long long i, Stored type, double x) {
  if (type == Stored::f64) {
    static_cast<double*>(row)[i] = x;
    return;
  }
  const bool nan = x != x;
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
  if (type == Stored::f32) {
    static_cast<unsigned*>(row)[i] = nan ? narrowed_nan(bits, type) : __float_as_uint(narrowed(x));
    return;
  }
  const float odd = narrowed_to_odd(x);
  if (type == Stored::e4m3) {
    static_cast<unsigned char*>(row)[i] = static_cast<unsigned char>(nan ? (bits >> 63 ? 0x80 : 0) | 0x7f
                                                                         : e4m3_of(odd));
    return;
  }
  static_cast<unsigned short*>(row)[i] = static_cast<unsigned short>(nan                   ? narrowed_nan(bits, type)
                                                                     : type == Stored::f16 ? pack<f16>(odd, 0)
                                                                                           : pack<bf16>(odd, 0));
}

// ---- rows --------------------------------------------------------------------------------------------------------

template <class Word>
__device__ inline void copy_row(const char* from, char* into, int bytes, int lane) {
  for (int i = lane; i < bytes / static_cast<int>(sizeof(Word)); i += append_lanes)
    reinterpret_cast<Word*>(into)[i] = reinterpret_cast<const Word*>(from)[i];
}

__device__ inline void put_row(const Appended& what, const NewRow& row, int head, int lane) {
  const auto size_of = [](Stored type) {
    return type == Stored::f64 ? 8ll : type == Stored::f32 ? 4ll : type == Stored::e4m3 ? 1ll : 2ll;
  };
  const long long from_size = size_of(what.from_type), into_size = size_of(what.into_type);
  const auto at = [&](const Strided& t, int entry, int position, long long size) {
    return static_cast<char*>(t.data) + (entry * t.batch + head * t.head + position * t.position) * size;
  };
  const char* const from = at(what.from, row.from_entry, row.from_position, from_size);
  char* const into = at(what.into, row.into_entry, row.into_position, into_size);
  const int bytes = what.width * static_cast<int>(from_size);
  switch (what.piece) {
    case 16: return copy_row<uint4>(from, into, bytes, lane);
    case 8: return copy_row<uint2>(from, into, bytes, lane);
    case 4: return copy_row<unsigned>(from, into, bytes, lane);
    case 2: return copy_row<unsigned short>(from, into, bytes, lane);
    default: break;
  }
#pragma unroll 1
  for (int i = lane; i < what.width; i += append_lanes) {
    const double x = element(from, i * what.from.element, what.from_type);
    store(into, i * what.into.element, what.into_type, what.scale == 1 || x != x ? x : x / what.scale);
  }
}

// Left to itself, the compiler takes fewer registers than it needs on sm_80, and spills.
__global__ void __launch_bounds__(append_threads, 4) append(const __grid_constant__ AppendArgs args) {
  const NewRow row = NewRow::of(args, static_cast<int>(blockIdx.x));
  if (!row.has_place) return;
  const int lane = static_cast<int>(threadIdx.x) % append_lanes;
  for (int i = static_cast<int>(threadIdx.x) / append_lanes; i < 2 * args.heads; i += append_threads / append_lanes)
    put_row(i < args.heads ? args.k : args.v, row, i < args.heads ? i : i - args.heads, lane);
}

}  // namespace attune
