// tests/numerics/masks.h — masks that covers are tested on: the public ones, and adversarial ones
#pragma once

#include "tests/numerics/corpus.h"

namespace attune::tests {

struct MaskCase {
  CorpusMod mod;
  /// Families whose cover must be tight: no tile that is None or All is reported as Some.
  bool closed = false;
};

/// Sized for up to 100 queries and 120 keys, 2 batch entries, 4 heads.
const std::vector<MaskCase>& masks();

}  // namespace attune::tests
