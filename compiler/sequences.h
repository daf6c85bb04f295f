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
  const Forward* forward = nullptr;  ///< a forward, which may have a KV cache; null for a backward
  bool one_type = true;              ///< true if q, k and v must have the same type

  bool paged() const { return forward && forward->page_table.given(); }
  /// True if the forward has separate lengths or positions for its keys, or for each entry.
  bool is_per_entry() const {
    return forward && (forward->kv_offset != 0 || forward->fixed_split_size != 0 || forward->kv_len.given() ||
                       forward->q_offsets.given());
  }
  /// True if packed queries read keys that are not packed.
  bool mixed() const { return forward && cu_q->given() && !cu_kv->given() && q->rank == 3 && k->rank == 4; }
};

/// Element i of a vector of i32 or i64 on the host.
std::int64_t whole(const Tensor& t, std::int64_t i);

/// Checks packed queries whose keys are dense or paged.
void check_packed_q(const Inputs& in, Problem& p);
/// Checks packed queries, keys and values.
void check_packed(const Inputs& in, Problem& p);
/// Checks the lengths and positions of Inputs::is_per_entry. Returns the greatest position of a first query.
std::int32_t check_apart(const Inputs& in, Problem& p);

}  // namespace attune::compiler
