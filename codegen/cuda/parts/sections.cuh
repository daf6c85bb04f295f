// codegen/cuda/parts/sections.cuh — the order of tiles: sets of tiles (of a head, or of a key head) in sections whose
// operands stay in the L2 cache together
#pragma once

namespace attune {

/// `sets` sets of `of_set` tiles each. A section has `section` sets, the last section the remaining ones, or
/// `last_sets`. Within a section the nth tiles of all sets follow one another. Index: a type that can count all tiles
/// of a call.
template <class Index>
struct Sections {
  int sets, section, of_set, last_sets = 0;

  struct At {
    int set, nth;
    int section;  ///< number of the section; unknown for a last one of last_sets
    bool last;    ///< true for the last section
  };
  __device__ At at(Index index) const {
    const int others = sets - last_sets;
    if (const Index rest = index - static_cast<Index>(of_set) * others; last_sets > 0 && rest >= 0)
      return {others + static_cast<int>(rest % last_sets), static_cast<int>(rest / last_sets), -1, true};
    const Index of_section = static_cast<Index>(of_set) * section;
    const int nth_section = static_cast<int>(index / of_section), before = nth_section * section,
              here = min(section, others - before), within = static_cast<int>(index % of_section);
    return {before + within % here, within / here, nth_section, before + here == sets};
  }
};

}  // namespace attune
