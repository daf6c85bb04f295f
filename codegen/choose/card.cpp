// codegen/choose/card.cpp — what a GPU's figures allow: the least time of a call, and the blocks of a kernel on a
// multiprocessor
#include "codegen/choose/card.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <attune/error.h>

#include "codegen/ceil_div.h"

namespace attune::codegen {
namespace {

// ---- a lower bound on a call's time ---------------------------------------------------------------------------------

// Products: the data sheet's TFLOP/s for dense bf16 with f32 sums, divided by 2 * multiprocessors * clock. From Hopper
// on, data centre GPUs reach it only with their own instructions (wgmma, tcgen05). On Hopper mma.sync reaches 62 to 65
// % of it, as others measured (Luo et al., Dissecting the NVIDIA Hopper Architecture, 2024); on Blackwell it is assumed
// to do as much per clock as on Hopper.
constexpr double mma_on_hopper = 0.65, mma_on_blackwell = mma_on_hopper / 2;
constexpr std::array<Card, 10> known{{{"A100", 80, 108, 1.41e9, 2.039e12, 80e9, 1024},
                                      {"A10", 86, 72, 1.695e9, 0.600e12, 24e9, 512},
                                      {"RTX 4090", 89, 128, 2.52e9, 1.008e12, 24e9, 256},
                                      {"L40S", 89, 142, 2.52e9, 0.864e12, 48e9, 512},
                                      {"H100", 90, 132, 1.83e9, 3.35e12, 80e9, 2048, mma_on_hopper},
                                      {"H200", 90, 132, 1.83e9, 4.8e12, 141e9, 2048, mma_on_hopper},
                                      {"B200", 100, 148, 1.85e9, 8.0e12, 180e9, 4096, mma_on_blackwell},
                                      {"B300", 103, 148, 1.85e9, 8.0e12, 288e9, 4096, mma_on_blackwell},
                                      {"RTX 5090", 120, 170, 2.407e9, 1.792e12, 32e9, 256},
                                      {"RTX PRO 6000", 120, 188, 2.617e9, 1.792e12, 96e9, 512}}};

/// Results of the special function units per multiprocessor and clock: the same from 8.0 to 12.0, according to CUDA's
/// table of arithmetic throughput.
constexpr double specials_a_clock = 16;

int specials_of(const ir::Expr& e) {
  switch (e->op) {
    case ir::Op::Exp:
    case ir::Op::Exp2:
    case ir::Op::Log:
    case ir::Op::Log2:
    case ir::Op::Sqrt:
    case ir::Op::Rsqrt:
    case ir::Op::Sin:
    case ir::Op::Cos:
    case ir::Op::Tanh: return 1;
    case ir::Op::Tan:
    case ir::Op::Sigmoid:
    case ir::Op::Erf:
    case ir::Op::Pow: return 2;
    // Division by a literal is a multiplication.
    case ir::Op::Div: return e->type == ir::Type::F32 && e->args[1]->op != ir::Op::Literal;
    case ir::Op::Literal:
    case ir::Op::Input:
    case ir::Op::Param:
    case ir::Op::Read:
    case ir::Op::Bound:
    case ir::Op::Field:
    case ir::Op::Sum:
    case ir::Op::Random:
    case ir::Op::Kept:
    case ir::Op::Custom:
    case ir::Op::Where:
    case ir::Op::Or:
    case ir::Op::And:
    case ir::Op::BitOr:
    case ir::Op::BitXor:
    case ir::Op::BitAnd:
    case ir::Op::Eq:
    case ir::Op::Ne:
    case ir::Op::Lt:
    case ir::Op::Le:
    case ir::Op::Gt:
    case ir::Op::Ge:
    case ir::Op::Shl:
    case ir::Op::Shr:
    case ir::Op::Add:
    case ir::Op::Sub:
    case ir::Op::Mul:
    case ir::Op::Rem:
    case ir::Op::Neg:
    case ir::Op::Not:
    case ir::Op::BitNot:
    case ir::Op::F32:
    case ir::Op::I32:
    case ir::Op::FloorDiv:
    case ir::Op::FloorMod:
    case ir::Op::Min:
    case ir::Op::Max:
    case ir::Op::Clamp:
    case ir::Op::Abs:
    case ir::Op::Floor:
    case ir::Op::Ceil:
    case ir::Op::Round:
    case ir::Op::Trunc: return 0;
  }
  throw Bug("an operation is of no kind that is known");
}

}  // namespace

double Card::flops(DType type, bool exact, Products by) const {
  // An f32 product is one TF32 product, at half the speed of bf16, or three if exact; an 8-bit product has twice the
  // speed.
  const double share = size_of(type) == 1 ? 2 : size_of(type) < 4 ? 1 : exact ? 1.0 / 6 : 1.0 / 2;
  return 2 * share * (by == Products::mma ? by_mma : 1) * products * multiprocessors * clock;
}

std::span<const Card> cards() { return known; }

const Card& card(int arch, std::string_view name) {
  const Card* found = nullptr;
  for (const Card& one : known) {
    // The longest name that matches wins: an A100 is not an A10.
    const bool named = name.find(one.name) != std::string_view::npos;
    if (named && (!found || found->name.size() <= one.name.size())) found = &one;
  }
  if (found) return *found;
  for (const Card& one : known)
    if (one.arch <= arch) found = &one;
  return found ? *found : known.front();
}

int special_functions(const compiler::Mod& mod) {
  int out = 1;
  // The per-element parts after hoisting: score, mask, prob. An affine score folds into the exponent.
  for (std::size_t i = 0; i < mod.levels.element.size(); ++i) {
    if (i == 0 && mod.fold.affine) continue;
    for (const ir::Expr& e : ir::in_order(std::span(&mod.levels.element[i], 1))) out += specials_of(e);
  }
  return out;
}

int random_numbers(const compiler::Mod& mod) {
  const std::vector<ir::Expr> all = ir::in_order(mod.levels.element);
  return static_cast<int>(std::ranges::count_if(all, [](const ir::Expr& e) { return e->op == ir::Op::Random; }));
}

double Bound::seconds() const { return std::max({products, exponentials, random, memory}); }

std::string_view Bound::by() const {
  return seconds() == products       ? "products"
         : seconds() == exponentials ? "exponentials"
         : seconds() == random       ? "random numbers"
                                     : "memory";
}

Bound bound(const Card& card, const Work& work) {
  return {.products = 2 * work.visited * (work.d + work.dv) / card.flops(work.dtype, work.exact, work.products),
          .exponentials = work.visited * work.specials / (specials_a_clock * card.multiprocessors * card.clock),
          .random = work.visited * work.randoms * multiplications_a_random /
                    (multiplications_a_clock * card.multiprocessors * card.clock),
          .memory = work.bytes / card.bytes_per_second};
}

namespace {

// ---- blocks on a multiprocessor -------------------------------------------------------------------------------------

constexpr int kb = 1024;
constexpr std::array<Multiprocessor, 10> known_limits{{{80, 64, 32, 164 * kb},
                                                       {86, 48, 16, 100 * kb},
                                                       {87, 48, 16, 164 * kb},
                                                       {89, 48, 24, 100 * kb},
                                                       {90, 64, 32, 228 * kb},
                                                       {100, 64, 32, 228 * kb},
                                                       {103, 64, 32, 228 * kb},
                                                       {110, 48, 24, 228 * kb},
                                                       {120, 48, 24, 100 * kb},
                                                       {121, 48, 24, 100 * kb}}};

// The same since 8.0: four partitions, each with its own registers, which warps get in units of 256; shared memory in
// units of 128 bytes, of which CUDA takes 1 KB per block.
constexpr int sectors = 4, registers_of_part = 16 * kb, register_unit = 256, shared_unit = 128, shared_of_cuda = kb;

}  // namespace

std::span<const Multiprocessor> multiprocessors() { return known_limits; }

const Multiprocessor& multiprocessor(int arch) {
  const auto newer = std::ranges::find_if(known_limits, [&](const Multiprocessor& m) { return m.arch > arch; });
  return newer == known_limits.begin() ? known_limits.front() : *(newer - 1);
}

Occupancy occupancy(int arch, int threads, int registers, int shared_bytes) {
  const Multiprocessor& m = multiprocessor(arch);
  const int warps = std::max(1, ceil_div(threads, 32));
  const int warps_of_part = registers_of_part / round_up(std::max(1, registers) * 32, register_unit);
  const std::array limits{
      std::pair{"registers", sectors * warps_of_part / warps},
      std::pair{"shared memory", m.shared_bytes / (round_up(shared_bytes, shared_unit) + shared_of_cuda)},
      std::pair{"warps", m.warps / warps}, std::pair{"blocks", m.blocks}};
  Occupancy out{.most_warps = m.warps, .limited_by = {}};
  out.blocks = std::ranges::min(limits, {}, [](const auto& limit) { return limit.second; }).second;
  out.warps = out.blocks * warps;
  for (const auto& [what, blocks] : limits)
    if (blocks == out.blocks) out.limited_by += (out.limited_by.empty() ? "" : ", ") + std::string(what);
  return out;
}

}  // namespace attune::codegen
