// codegen/cuda/contract/sums.cuh — the ways to sum the terms of captured tensors' gradients, a row each; the host
// includes this too, so only C++ is used here
#pragma once

namespace attune {

/// The kernels of a whole backward that sum terms: its own, in registers, and companions.
enum Summers : unsigned char {
  by_kernel = 1,
  by_sum_pairs = 2,
  by_spread_diagonals = 4,
  by_sum_ds = 8,
  by_sum_sinks = 16,
};

// Which pairs of a term are summed before the sum is added to the tensor's exact sum: pairs with the same place in the
// tensor. "by_" and the name is the count of such terms in GradientTraits, and the function that adds them. A row then
// says who sums them in a whole backward; which mods of `attune support` have them; and what `attune explain` says of
// them, in a whole backward, and in kernels for a part of one, which have only the first four.
#define ATTUNE_SUMS(ROW)                                                                                             \
  /* Pairs of a batch entry and head; and of a query; and of a key. */                                               \
  ROW(head, by_kernel, "grads", "by head: each warp sums its pairs of an item, and adds one number",                 \
      "by head: a block of the kernel of q sums its pairs, and adds one number")                                     \
  ROW(row, by_sum_pairs, "grads", "by row: another kernel visits all pairs again, and each query adds one number",   \
      "by row: each query of the kernel of q adds one number")                                                       \
  ROW(col, by_kernel, "grads", "by column: each key of an item adds one number",                                     \
      "by column: each key of the kernel of k and v adds one number")                                                \
  /* Nothing: each pair adds to its own place. */                                                                    \
  ROW(pair, by_sum_pairs, "grads",                                                                                   \
      "pair by pair: another kernel visits all pairs again, and adds each to an exact sum, which is slow",           \
      "pair by pair: the kernel of k and v adds each pair to an exact sum, which is slow")                           \
  /* The pairs of a distance q - kv, as multiples of dS. */                                                          \
  ROW(diagonal, by_spread_diagonals, "grads q-kv",                                                                   \
      "along diagonals: four warps of the kernel sum pairs of equal q - kv, which takes up to 1.2 times as long")    \
  /* Nothing: dS is stored, and the gradient is dS times a factor. */                                                \
  ROW(ds, by_sum_ds, "dS", "of each pair: the kernel stores dS, and another one adds it up")                         \
  /* The pairs of a distance, from dS that is stored for others. */                                                  \
  ROW(distance, by_sum_ds, "grads q-kv", "along diagonals: another kernel adds up the dS that is stored for others") \
  /* The pairs of a query: the sum of their dS follows from the row's lse and delta. */                              \
  ROW(end, by_sum_sinks, "grads", "by row, of lse and delta: pairs are not visited again")                           \
  /* ... and that of their p dP from delta over the prob mod's factor, the gate, unless this is not precise. */      \
  ROW(gate, by_sum_sinks | by_sum_pairs, "grads",                                                                    \
      "by row, of delta: pairs are visited again only in rows whose gate is 0 or far from 1")

enum class TermSum : unsigned char {
#define ATTUNE_NAME(name, ...) name,
  ATTUNE_SUMS(ATTUNE_NAME)
#undef ATTUNE_NAME
};

/// A row of the list.
struct SumFacts {
  TermSum sum;
  const char* function;  ///< "by_head"
  unsigned summers;      ///< of Summers
  const char *kind, *words, *words_of_parts = "";
};
inline constexpr SumFacts facts_of_sums[] = {
#define ATTUNE_FACTS(name, ...) {TermSum::name, "by_" #name, __VA_ARGS__},
    ATTUNE_SUMS(ATTUNE_FACTS)
#undef ATTUNE_FACTS
};
constexpr const SumFacts& facts_of(TermSum sum) { return facts_of_sums[static_cast<int>(sum)]; }

}  // namespace attune
