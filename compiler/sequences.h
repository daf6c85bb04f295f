// compiler/sequences.h — where sequences begin and how long they are: cu_seqlens, kv_len, q_offsets
#pragma once

#include "compiler/problem.h"
#include "compiler/requirements.h"

namespace attune::compiler {

/// What a forward and a backward call have in common.
struct Inputs {
  Named q, k, v, cu_q, cu_kv;
  std::int32_t q_offset;
  std::int64_t max_q_len = 0, max_kv_len = 0;
  const Forward* forward = nullptr;  ///< which may have a KV cache; none for a backward
  bool one_type = true;              ///< must q, k and v hold the same?

  bool paged() const { return forward && forward->page_table.given(); }
  /// Has the forward lengths or positions of its own for keys, or for each entry?
  bool is_per_entry() const {
    return forward && (forward->kv_offset != 0 || forward->fixed_split_size != 0 || forward->kv_len.given() ||
                       forward->q_offsets.given());
  }
  /// Do packed queries read keys that are not packed?
  bool mixed() const { return forward && cu_q->given() && !cu_kv->given() && q->rank == 3 && k->rank == 4; }
};

/// Packed queries alone: keys are dense, or paged.
void check_packed_q(const Inputs& in, Problem& p);
/// Packed queries, keys and values.
void check_packed(const Inputs& in, Problem& p);
/// Lengths and positions of Inputs::is_per_entry. Returns the greatest position of a first query.
std::int32_t check_apart(const Inputs& in, Problem& p);

}  // namespace attune::compiler
