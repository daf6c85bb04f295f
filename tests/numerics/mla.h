// tests/numerics/mla.h — shapes of MLA calls
#pragma once

#include <cstdint>

#include "tests/numerics/inputs.h"

namespace attune::tests {

/// The queries are the last ones of three entries of as many keys.
inline Shape mla_shape(std::int64_t heads, std::int64_t q_len, std::int64_t kv_len) {
  return {.batch = 3,
          .q_heads = heads,
          .kv_heads = 1,
          .q_len = q_len,
          .kv_len = kv_len,
          .d = 576,
          .dv = 512,
          .dtype = DType::bf16,
          .q_offset = static_cast<std::int32_t>(kv_len - q_len),
          .mla = true};
}

}  // namespace attune::tests
