// codegen/cuda/companions/append.cuh — writes new keys and values to their places in a KV cache
//
// One block per new row: append_lanes of its append_threads threads share the row of one head of k or v. The stored
// bits equal those that the host stores. Lengths, page tables and slots are read here and not checked: rows beyond
// their entry's capacity, and rows whose page or slot does not exist, are skipped.
#pragma once

#include "codegen/cuda/companions/elements.cuh"
#include "codegen/cuda/parts/entry.cuh"

namespace attune {

// ---- where a row goes --------------------------------------------------------------------------------------------

/// The source and the destination of a new row: batch entries (or pages) and positions, as in Strided.
struct NewRow {
  int from_entry, from_position;
  long long into_entry, into_position;
  bool has_place;

  __device__ static NewRow of(const AppendArgs& args, int nth) {
    if (args.slots.at) return of_slot(args.slots, nth);
    NewRow out{0, nth, 0, 0, false};
    int b = 0, from_end = 0;  // from_end: this row, counted back from the end
    if (args.starts) {
      b = entry_of(args, nth);
      from_end = args.starts[b + 1] - nth;
      if (nth < args.starts[b] || from_end <= 0) return out;
    } else {
      b = nth / args.new_rows;
      out.from_entry = b;
      out.from_position = nth - b * args.new_rows;
      from_end = args.new_rows - out.from_position;
    }
    const int key = args.kv_lens.at[b * args.kv_lens.stride] - from_end;
    if (key < 0 || key >= args.capacity) return out;
    out.into_entry = b;
    out.into_position = key;
    if (args.page_table.at) {
      const Pages pages(args.page_table, b);
      const Pages::At at = pages.at(key);
      out.into_entry = at.page;
      out.into_position = at.row;
      if (!pages.exists(at.page)) return out;
    }
    out.has_place = true;
    return out;
  }

 private:
  __device__ static NewRow of_slot(const Slots& slots, int nth) {
    const long long at = nth * slots.stride;
    const long long slot = slots.wide ? static_cast<const long long*>(slots.at)[at]
                                      : static_cast<const int*>(slots.at)[at];
    const long long page = slot / slots.rows;
    return {0, nth, page, slot - page * slots.rows, slot >= 0 && page < slots.pages};
  }
  /// The last entry whose start is not after this row.
  __device__ static int entry_of(const AppendArgs& args, int row) {
    int first = 0, end = args.batch;
    while (end - first > 1) {
      const int middle = first + (end - first) / 2;
      (args.starts[middle] <= row ? first : end) = middle;
    }
    return first;
  }
};

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
  const auto at = [&](const Strided& t, long long entry, long long position, long long size) {
    return static_cast<char*>(t.data) + (entry * t.batch + head * t.head + position * t.position) * size;
  };
  const char* const from = at(what.from, row.from_entry, row.from_position, from_size);
  char* const into = at(what.into, row.into_entry, row.into_position, into_size);
  const int bytes = what.width * static_cast<int>(from_size);
  switch (what.copy_bytes) {
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

// Without this bound the compiler takes fewer registers than it needs on sm_80, and spills.
__global__ void __launch_bounds__(append_threads, 4) append(const __grid_constant__ AppendArgs args) {
  const NewRow row = NewRow::of(args, static_cast<int>(blockIdx.x));
  if (!row.has_place) return;
  const int lane = static_cast<int>(threadIdx.x) % append_lanes;
  for (int i = static_cast<int>(threadIdx.x) / append_lanes; i < 2 * args.heads; i += append_threads / append_lanes)
    put_row(i < args.heads ? args.k : args.v, row, i < args.heads ? i : i - args.heads, lane);
}

}  // namespace attune
