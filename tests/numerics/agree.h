// tests/numerics/agree.h — an engine's results against the oracle's, with plain dense attention as the yardstick
#pragma once

#include <span>
#include <string>

#include "tests/numerics/engines.h"
#include "tests/numerics/inputs.h"

namespace attune::tests {

// An output is right if its distance from the oracle's, |x - oracle| over all finite elements, is at most 1.5 times
// that of dense attention, and no element is infinite or NaN where the oracle's is finite. In lse and max, -inf and NaN
// must be where the oracle has them. Memory between elements must not be written.
//
// Both distances are samples. So that luck does not decide for few elements, the bound has two allowances: four f32 ulp
// of |oracle|, or for a gradient four ulp of its terms, as if their roundings were independent; and for 16-bit inputs
// one rounding to the input's type of |oracle|, divided by the square root of the number of rows. The latter is the
// average of one rounding per row; at 100 rows it is a tenth of a rounding, and about a sixth of dense attention's
// error. Values that are denormal in f32 may be 0.

/// What to compute and compare.
struct Compared {
  bool forward = true, backward = true;
  bool lse = true, max = true;  ///< the forward writes these
  bool grad_lse = true;         ///< the backward gets it
  bool captured = true;         ///< the gradient of every captured float
};

/// Whose errors are the yardstick: the largest of them.
using Yardsticks = std::span<const Subject* const>;

struct Verdict {
  std::string wrong;        ///< empty, or what is wrong, with all that is needed to do it again
  double dense_error = 0;   ///< the largest of all outputs, relative to the oracle
  double engine_error = 0;  ///< the same of the engines
  double used = 0;          ///< the largest share of what was granted
  double largest = 0;       ///< |lse| or |max| of the oracle
};

/// `yardsticks`: none for the subject itself.
Verdict compare(const Subject& subject, const Inputs& in, std::span<const Engine> engines, const Compared& what = {},
                Yardsticks yardsticks = {});

/// compare(…).wrong, for every engine.
std::string disagreement(const Attention& attention, const Inputs& in, const Compared& what = {});
std::string disagreement(const Attention& attention, const Shape& shape, const Compared& what = {});

}  // namespace attune::tests
