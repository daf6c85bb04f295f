// codegen/choose/card.h — what a GPU's figures allow: the least time of a call, and the blocks of a kernel on a
// multiprocessor
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "codegen/choose/plan.h"
#include "compiler/mod.h"

namespace attune::codegen {

// ---- a lower bound on a call's time: products, exponentials, random numbers, memory ---------------------------------

/// A GPU's figures from its data sheet.
struct Card {
  std::string_view name;
  int arch;  ///< compute capability times ten
  int multiprocessors;
  double clock;             ///< Hz, as the data sheet's figures assume
  double bytes_per_second;  ///< memory bandwidth
  double bytes;             ///< memory
  int products;             ///< multiply-adds of bf16 or f16 into f32, per multiprocessor and clock
  double by_mma = 1;        ///< the share of `products` that mma.sync reaches

  /// FLOP/s of products of this type by this instruction.
  double flops(DType type, bool exact, Products by) const;
};
/// The GPUs whose data sheets are known.
std::span<const Card> cards();
/// The GPU whose name is part of `name`; else one of this compute capability; else the newest older one.
const Card& card(int arch, std::string_view name = {});

/// A call.
struct Work {
  DType dtype = DType::bf16;
  double visited = 0;  ///< pairs in visited tiles, over all heads
  double d = 0, dv = 0;
  int specials = 1;                     ///< special functions per pair: see special_functions()
  int randoms = 0;                      ///< random numbers per pair
  double bytes = 0;                     ///< that have to be read or written: q, k, v and o, each once
  bool exact = true;                    ///< as in KernelSpec
  Products products = Products::wgmma;  ///< of the kernel
};

/// Operations per pair on the special function units: the softmax's exp2, and the expressions' divisions, square roots,
/// exponentials, logarithms and trigonometry.
int special_functions(const compiler::Mod& mod);
/// Random numbers per pair.
int random_numbers(const compiler::Mod& mod);

/// Of the 20 multiplications of a random number (Philox 4x32-10), those whose operands depend on both q and kv. The
/// other five can be hoisted out of the loop over pairs.
inline constexpr int multiplications_a_random = 15;
/// 32-bit multiplications per multiprocessor and clock, from 8.0 to 12.0, according to CUDA's table.
inline constexpr int multiplications_a_clock = 64;

struct Bound {
  double products = 0, exponentials = 0, random = 0, memory = 0;  ///< lower bounds, in seconds
  double seconds() const;
  std::string_view by() const;  ///< which of them is largest
};
Bound bound(const Card& card, const Work& work);

// ---- how many blocks fit on a multiprocessor, and what limits them --------------------------------------------------

/// A multiprocessor's limits, from CUDA's table of technical specifications per compute capability.
struct Multiprocessor {
  int arch;  ///< compute capability times ten
  int warps, blocks;
  int shared_bytes;  ///< for all its blocks together
};
/// The limits of every architecture that kernels are made for by name, ascending. A device may have a newer one.
std::span<const Multiprocessor> multiprocessors();
/// The limits for `arch`, or for the newest known older one.
const Multiprocessor& multiprocessor(int arch);

struct Occupancy {
  int blocks = 0, warps = 0;  ///< resident at once
  int most_warps = 0;
  std::string limited_by;  ///< registers, shared memory, warps, blocks: every one that allows no more
};
/// `registers` per thread; `shared_bytes` per block.
Occupancy occupancy(int arch, int threads, int registers, int shared_bytes);

}  // namespace attune::codegen
