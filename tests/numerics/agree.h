// tests/numerics/agree.h — an engine's results against the oracle's; plain dense attention is the yardstick
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/numerics/engines.h"
#include "tests/numerics/inputs.h"

namespace attune::tests {

// An output is right if its distance from the oracle's, |x - oracle| over all finite elements, is at most 1.5 times
// that of dense attention, and no element that is finite in the oracle is infinite or NaN. lse and max must have -inf
// and NaN where the oracle has them. Memory outside of the elements is not written.
//
// Both distances are samples. So that luck does not decide when there are few, two more allowances are added: four
// units in the last place of f32, of |oracle|, or for a gradient of its terms, as if their roundings were independent;
// and for 16-bit inputs one rounding of such an input, of |oracle|, divided by the square root of the number of rows of
// equal size (1 where one row is most of |oracle|). The latter is what remains, on average, of one rounding for each
// row; at 100 rows it is a tenth of a rounding, and about a sixth of dense attention's error. For a captured gradient
// it is one such rounding of each term, as if they were independent: a tensor of two elements has no luck to average
// over, and its terms cancel. (24 random draws of s + t0[h] * f32(kv - q) + t1[b], f16: errors of t1 of 0.004 to 0.13
// by these roundings alone, where this adds 0.06 to 1.5 times dense attention's.) Products that delta sums count too: o
// is rounded, and so are the probabilities that it sums. All pairs of a row are off by p times delta's error; where
// they read one element and their terms cancel, that is what remains. (Seed 950013 of the random mods on emulated GPUs:
// a gradient was off by 0.0097 where the backward got o in f16, and by 0.0021 where it got it in f32.)
//
// More follows from the kernels' arithmetic (Terms in dense.h; docs/results/emulated.md). A kernel rounds each
// probability to 16 bits before P V, by half a unit in the last place; equal probabilities are off by the same factor,
// which no number of keys averages out. Dense attention rounds other numbers, namely those divided by the row's sum:
// 1/64 is exact. The gradient of each score is rounded too, before products with k and q: where one pair is most of a
// result, its rounding and the result's own may be off in the same direction. And numbers that are denormal in f32 may
// be 0: results, and probabilities.

/// An engine's result, for those who do more with it than compare.
struct Observed {
  std::string name;
  std::string type;                     ///< e.g. bf16
  const std::vector<double>& elements;  ///< in logical order
  const std::vector<double>& oracle;
  double granted = 0;  ///< the allowed distance
};

/// What to compute and compare.
struct Compared {
  bool forward = true, backward = true;
  bool lse = true, max = true;       ///< outputs of the forward
  bool grad_lse = true;              ///< input of the backward
  bool gives_o = false;              ///< the backward gets o and lse from the engine's forward
  bool captured = true;              ///< the gradient of every captured float
  DType captured_type = DType::f32;  ///< of these gradients
  /// Called with each result, if it is there. Then all yardsticks are asked.
  std::function<void(const Observed&)> observe{};
};

/// The subjects whose largest error is the yardstick.
using Yardsticks = std::span<const Subject* const>;

struct Verdict {
  std::string wrong;        ///< empty, or the error, with all that is needed to reproduce it
  double dense_error = 0;   ///< the largest over all outputs and the yardsticks that were asked, relative to the oracle
  double engine_error = 0;  ///< the same for the engines
  double used = 0;          ///< the largest share of the allowance
  double largest = 0;       ///< |lse| or |max| in the oracle; infinite if sums of a result may leave f32
};

/// `yardsticks`: empty for the subject itself.
Verdict compare(const Subject& subject, const Inputs& in, std::span<const Engine> engines, const Compared& what = {},
                Yardsticks yardsticks = {});

/// compare(…).wrong, for every engine; under a sanitizer for one of them, by turns.
std::string disagreement(const Attention& attention, const Inputs& in, const Compared& what = {});
std::string disagreement(const Attention& attention, const Shape& shape, const Compared& what = {});

}  // namespace attune::tests
