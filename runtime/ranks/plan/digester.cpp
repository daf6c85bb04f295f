// runtime/ranks/plan/digester.cpp — numbers and bytes as one digest, for ranks to compare
#include "runtime/ranks/plan/digester.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace attune::runtime::ranks {

void Digester::add(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  words_.insert(words_.end(), {bytes.size(), h.high64, h.low64});
}

ir::Digest Digester::digest() const {
  const XXH128_hash_t h = XXH3_128bits(words_.data(), words_.size() * sizeof words_[0]);
  return {h.high64, h.low64};
}

}  // namespace attune::runtime::ranks
