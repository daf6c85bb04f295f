// ir/random.h — the random numbers every engine shares: Philox 4x32-10 of a seed and four coordinates
#pragma once

#include <array>
#include <cstdint>

namespace attune::ir {

/// One block of Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// random(seed) of the language, in [0, 1) with 24 bits, the same on every engine:
///   counter = {kv >> 2, q, head, batch}, key = {seed, 0}, the word kv & 3 of the block, its top 24 bits times 2^-24.
/// Four neighbouring kv share one block, so a vector or a fragment pays a quarter of a block per element.
float random(std::int32_t seed, std::int32_t batch, std::int32_t head, std::int32_t q, std::int32_t kv);

/// kept(seed, n) of the language, true for n of 65536 pairs: u < n, where u has 16 bits. The same on every engine.
/// 16 neighbouring kv share the block of
///   counter = {kv >> 4, q, head, batch}, key = {seed, 1}.
/// Of its word i, shifted right by kv & 15, bit 0 is bit 8 + i of u, and bit 16 is bit 12 + i; of word i rotated to the
/// right by 5 xor word i rotated by 11, they are bits i and 4 + i. So a pair takes 8 bits of its own, and 8 that it
/// shares with others of the block; the bits of any two pairs are independent.
///
/// Bit by bit, a few instructions compare 32 pairs at once: see kept_word() in codegen/cuda/contract/ops.cuh.
bool kept(std::int32_t seed, std::int32_t n, std::int32_t batch, std::int32_t head, std::int32_t q, std::int32_t kv);

}  // namespace attune::ir
