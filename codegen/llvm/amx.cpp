// codegen/llvm/amx.cpp — the product on AMX tiles: 32 x 32 of C in four tiles of 16 rows by 64 bytes
#include <array>
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/llvm/kit.h"

namespace attune::codegen {
namespace {

/// Rows of a tile, and units or floats per row.
constexpr int side = 16;
// The eight tiles: four of C, row-major, then two halves of A and two of B.
constexpr unsigned c_tile = 0, a_tile = 4, b_tile = 6;

/// The operand of ldtilecfg: palette 1, every tile full size.
Val configuration(const Kit& kit, Code& code) {
  std::array<std::uint8_t, 64> bytes{1};
  for (std::size_t tile = 0; tile < 8; ++tile) {
    bytes[16 + 2 * tile] = 4 * side;  // bytes per row, a 16-bit field
    bytes[48 + tile] = side;
  }
  llvm::Constant* data = llvm::ConstantDataArray::get(kit.module.context(), bytes);
  return {code,
          new llvm::GlobalVariable(kit.module.llvm(), data->getType(), true, llvm::GlobalValue::InternalLinkage, data)};
}

class Tiles {
 public:
  explicit Tiles(Code& code) : code_(code) {}

  void zero(unsigned tile) const { code_.intrinsic(llvm::Intrinsic::x86_tilezero, {}, {number(tile)}); }
  /// `row`: units or floats from one row to the next.
  void load(unsigned tile, Val from, Val row) const {
    code_.intrinsic(llvm::Intrinsic::x86_tileloadd64, {}, {number(tile), from, row * 4});
  }
  void store(unsigned tile, Val into, Val row) const {
    code_.intrinsic(llvm::Intrinsic::x86_tilestored64, {}, {number(tile), into, row * 4});
  }
  void multiply_add(unsigned c, unsigned a, unsigned b) const {
    code_.intrinsic(llvm::Intrinsic::x86_tdpbf16ps, {}, {number(c), number(a), number(b)});
  }

 private:
  Val number(unsigned tile) const { return {code_, code_.ir().getInt8(static_cast<std::uint8_t>(tile))}; }
  Code& code_;
};

/// Calls body for each tile of C, with its number and address.
void each_of_c(Code& code, const Block& block, const std::function<void(unsigned tile, Val at)>& body) {
  for (unsigned i = 0; i < 4; ++i)
    body(c_tile + i, code.at(block.c, code.f32(), block.c_row * (i / 2 * side) + i % 2 * side));
}

/// Multiplies the rows of C by `keep` in memory, from where the tiles load C afterwards.
void scale(const Kit& kit, Code& code, const Block& block) {
  code.loop(code.index(0), code.index(kit.tiling.mr), 1, [&](Val r) {
    const Val times = code.load(code.f32(), code.at(block.keep, code.f32(), r));
    for (unsigned v = 0; v < kit.vectors(); ++v) {
      const Val at = code.at(block.c, code.f32(), r * block.c_row + v * kit.width());
      code.store(code.load(Code::vector(code.f32(), kit.width()), at) * times, at);
    }
  });
}

}  // namespace

void define_amx(const Kit& kit) {
  Code begin(kit.module.define(kit_symbol::tiles_begin, llvm::Type::getVoidTy(kit.module.context()), {}));
  begin.intrinsic(llvm::Intrinsic::x86_ldtilecfg, {}, {configuration(kit, begin)});
  begin.done();
  Code end(kit.module.define(kit_symbol::tiles_end, llvm::Type::getVoidTy(kit.module.context()), {}));
  end.intrinsic(llvm::Intrinsic::x86_tilerelease, {}, {});
  end.done();

  Code code(kit.kernel(kit_symbol::product));
  const Tiles tiles(code);
  each_block(kit, code, static_cast<unsigned>(kit.tiling.mr), [&](const Block& block) {
    code.branch(
        block.is_set,
        [&] {
          each_of_c(code, block, [&](unsigned tile, Val) { tiles.zero(tile); });
          return Code::Carried{};
        },
        [&] {
          scale(kit, code, block);
          each_of_c(code, block, [&](unsigned tile, Val at) { tiles.load(tile, at, block.c_row); });
          return Code::Carried{};
        });
    llvm::Type* unit = unit_type(kit, code);
    code.loop(code.index(0), block.k, kit.tiling.k, [&](Val k) {
      for (unsigned half = 0; half < 2; ++half) {
        tiles.load(a_tile + half, code.at(block.a, unit, block.a_row * (half * side) + k), block.a_row);
        tiles.load(b_tile + half, code.at(block.b, unit, block.b_k * k + half * side), block.b_k);
      }
      for (unsigned i = 0; i < 4; ++i) tiles.multiply_add(c_tile + i, a_tile + i / 2, b_tile + i % 2);
    });
    each_of_c(code, block, [&](unsigned tile, Val at) { tiles.store(tile, at, block.c_row); });
  });
  code.done();
}

}  // namespace attune::codegen
