// tests/numerics/differences.h — the oracle's gradients against central differences of its own forward
#pragma once

#include <attune/attune.h>

#include <map>
#include <string>

namespace attune::tests {

/// One call: dense, f64 throughout. Gradients are compared along random directions and single coordinates of q, k, v
/// and every floating capture, for the loss sum(o * wo) + sum(lse * wl) over the finite lse.
struct DifferenceCase {
  std::int64_t batch = 2, q_heads = 4, kv_heads = 2, q_len = 24, kv_len = 28, d = 4, dv = 3;
  std::int32_t q_offset = 0;
  bool with_lse = true;
  int directions = 2, coordinates = 3;
  double step = 1e-6;
  std::uint64_t seed = 1;
};

/// The largest |difference - gradient| / max(1, |difference|) found, by tensor: "q", "k", "v" and captures by name.
std::map<std::string, double> gradient_errors(const Attention& attention, const std::map<std::string, Tensor>& captures,
                                              const DifferenceCase& at);

}  // namespace attune::tests
