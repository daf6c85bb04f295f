// codegen/cuda/contract/traits.cuh — what is known about a Mod when its source is written: kernels are chosen by it,
// and compiled with it
#pragma once

namespace attune {

/// Where the part of a score that does not depend on s is largest among the pairs of a row and a tile of keys.
enum class Peak : unsigned char {
  unknown,
  ends,      ///< at the first or the last key
  diagonal,  ///< there, or where kv is q
  columns,   ///< anywhere; the part is the same for all rows
};

/// What is known about a Mod when its source is written.
struct Traits {
  bool scaled = false;     ///< exponent(s) is factor() * s, and factor() is positive: one multiply-add makes the power
  bool bounded = false;    ///< exponent() stays below `most`, closely enough that no running maximum is needed
  bool masked = false;     ///< some pairs are masked out, by the next three
  bool has_first = false;  ///< keys before first()
  bool has_last = false;   ///< keys after last()
  bool has_keep = false;   ///< pairs for which keep() is false
  bool keeps_by_fields = false;  ///< keep() reads neither q nor kv, and a Row with fields has of_lane() and is()
  int keep_block = 0;  ///< keep() is the same for all keys of a block of so many, from a multiple of it on: 16 to 128;
                       ///< 0: of none so large
  bool has_prob = false;      ///< prob() changes p
  bool linear_prob = true;    ///< prob() is a multiple of p, so it may act before the normalisation
  bool drops = false;         ///< prob() is kept(drop_seed(), drop_share(), ...) ? p * drop_factor() : 0
  bool has_sink = false;      ///< sink() joins the denominator
  bool skips = false;         ///< some tiles of keys are not visited: by the mask, or by scores of -inf
  bool listed = false;        ///< tiles to visit come as lists; bands() is not used
  float most = 0;             ///< see bounded
  Peak peak = Peak::unknown;  ///< where term() is largest. If it is not there, a call takes longer
  // Only for the choice of a kernel; sources do not contain these.
  bool delta_of_o = true;     ///< of a backward: a row's delta is the product of dO and O
  bool has_slope = false;     ///< of a backward: the derivative of scores is not 1 everywhere
  bool prob_chooses = false;  ///< prob() is one of several by p, as a threshold's is
  bool draws = false;         ///< prob() draws random numbers pair by pair
  bool has_terms = false;     ///< gradients of captured tensors are asked for
  // ... of which a kernel for a whole backward sums some so: see Term::Sum.
  bool sums_items = false;      ///< by head or by key, in the warpgroups' registers
  bool items_ask_s = false;     ///< ... from more than P, dP and delta of a pair
  bool sums_diagonals = false;  ///< along diagonals, q - kv
  bool stores_ds = false;       ///< as stored dS: see codegen/facts/ds_term.h
  bool sums_pairs = false;      ///< by query or pair by pair, in a kernel of their own
  bool copies_read = false;     ///< there is a read that a kernel can copy tile by tile: see copied_read()
  bool copies_f32 = false;      ///< ... of f32, in a backward
  int distant_reads = 0;        ///< reads in the part that a kernel can compute once a distance: see distant_part()
  int column_words = 0;         ///< words that scores read of a column, some of them from captured tensors
  bool has_tanh = false;        ///< there is a tanh that a kernel can compute itself: see only_tanh()
  bool shares_tiles = false;    ///< heads can share tiles: neither the mask nor column reads vary with the head
};

}  // namespace attune
