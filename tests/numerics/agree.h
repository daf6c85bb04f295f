// tests/numerics/agree.h — an engine's results against the oracle's, with plain dense attention as the yardstick
#pragma once

#include <span>
#include <string>

#include "tests/numerics/engines.h"
#include "tests/numerics/inputs.h"

namespace attune::tests {

// An output is right when its distance from the oracle's, |x - oracle| over all finite elements, is at most 1.5 times
// that of dense attention, and nothing that the oracle has finite is infinite or NaN. Of lse and max, -inf and NaN must
// be where the oracle has them. What is of no element is not written.
//
// Both distances are samples. So that luck does not decide where there are few of them, two things are granted besides:
// four units in the last place of f32, of |oracle|, or for a gradient of its terms, as if their roundings were
// independent; and for 16-bit inputs one rounding of such an input, of |oracle|, divided by the square root of the
// number of rows. The latter is what is left, on average, of one rounding for each row; at 100 rows it is a tenth of a
// rounding, and of dense attention's error about a sixth. And what is denormal in f32 may be 0.

/// What is computed and compared.
struct Compared {
  bool forward = true, backward = true;
  bool lse = true, max = true;  ///< asked of the forward
  bool grad_lse = true;         ///< given to the backward
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
