// codegen/cuda/emulated/ptx/ldmatrix.cuh — blocks of 8 rows by 16 bytes between shared memory and a warp's registers
#pragma once

namespace attune {

/// A lane's part: the row that it names, on the host, and its words.
struct BlockRows {
  void* row;
  unsigned* words;
};

/// Word i of thread 4 r + c is 32-bit word c of row r of block i; transposed, halves 2 c and 2 c + 1 of column r.
template <int Blocks, bool Transposed, bool Store>
inline void move_blocks(void* const* parts, unsigned) {
  const auto part = [&](int lane) { return static_cast<const BlockRows*>(parts[lane]); };
  for (int i = 0; i < Blocks; ++i)
    for (int lane = 0; lane < 32; ++lane) {
      if (!part(lane)) continue;
      unsigned& word = part(lane)->words[i];
      const auto move = [](auto& register_, auto& shared) {
        if constexpr (Store)
          shared = register_;
        else
          register_ = shared;
      };
      if constexpr (!Transposed) {
        move(word, static_cast<unsigned*>(part(8 * i + lane / 4)->row)[lane % 4]);
      } else {
        unsigned short halves[2] = {static_cast<unsigned short>(word), static_cast<unsigned short>(word >> 16)};
        for (int j = 0; j < 2; ++j)
          move(halves[j], static_cast<unsigned short*>(part(8 * i + 2 * (lane % 4) + j)->row)[lane / 4]);
        if constexpr (!Store) word = halves[0] | static_cast<unsigned>(halves[1]) << 16;
      }
    }
}
template <int Blocks, bool Transposed, bool Store>
inline void together_blocks(const char* what, unsigned* words, unsigned at, Site from) {
  using namespace emulated;
  BlockRows mine{nullptr, words};
  if (attune_machine->now->lane < 8 * Blocks)
    mine.row = attune_machine->shared(at, 16, Store ? Touch::write : Touch::read, from);
  attune_machine->together(~0u, what, &move_blocks<Blocks, Transposed, Store>, &mine, from);
}

inline void load_blocks(unsigned* x, unsigned at, Site from = Site::here()) {
  together_blocks<4, false, false>("ldmatrix", x, at, from);
}
inline void load_blocks_transposed(unsigned (&x)[4], unsigned at, Site from = Site::here()) {
  together_blocks<4, true, false>("ldmatrix.trans", x, at, from);
}
inline void load_two_blocks_transposed(unsigned (&x)[2], unsigned at, Site from = Site::here()) {
  together_blocks<2, true, false>("ldmatrix.x2.trans", x, at, from);
}
inline void store_blocks(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d, Site from = Site::here()) {
  unsigned words[4] = {a, b, c, d};
  together_blocks<4, false, true>("stmatrix", words, at, from);
}
inline void store_blocks_transposed(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d,
                                    Site from = Site::here()) {
  unsigned words[4] = {a, b, c, d};
  together_blocks<4, true, true>("stmatrix.trans", words, at, from);
}

}  // namespace attune
