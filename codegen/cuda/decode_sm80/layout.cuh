// codegen/cuda/decode_sm80/layout.cuh — the shared memory of a block of decode_sm80.cuh, in bytes
#pragma once

namespace attune {

struct DecodeLayout80 {
  int m, n, d, dv, stages, warps, element, kept;  ///< as in Tile; bytes of an element of q, and of k and v
  bool has_before;                                ///< results over other keys are merged in
  int number = 4, part = 8;                       ///< bytes of an f32 and of a RowPartial
  int slot_bytes = n * (d > dv ? d : dv) * kept, ring_bytes = stages * slot_bytes;
  // Rows of 8 results that warps write next to each other; the padding keeps the rows in different banks.
  int met_rows = 8, met_pitch = dv + 8, met_bytes = warps * met_rows * met_pitch * number;
  int before_bytes = has_before ? m * number : 0;
  int ring = 0, q = warps * ring_bytes, met = q + m * d * element, parts = met + met_bytes,
      last = parts + warps * m * part, before = last + 16, bytes = before + before_bytes;
};

}  // namespace attune
