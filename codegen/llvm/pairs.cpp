// codegen/llvm/pairs.cpp — the code that kernels over a tile's pairs share: fields, coordinates, scores
#include "codegen/llvm/pairs.h"

namespace attune::codegen {
namespace {

/// A field in its expression's type, from its four bytes of storage.
Val from_bits(Val bits, ir::Type type) {
  switch (type) {
    case ir::Type::F32: return as_float(bits);
    case ir::Type::I32: return bits;
    case ir::Type::Bool: return bits != 0;
  }
  return bits;
}
Val to_bits(Val value, ir::Type type) {
  switch (type) {
    case ir::Type::F32: return as_int(value);
    case ir::Type::I32: return value;
    case ir::Type::Bool: return zero_one(value);
  }
  return value;
}

Val field_at(const PairsCode& pairs, Val fields, Val ld, std::uint32_t index, Val i) {
  return pairs.code.at(fields, pairs.code.i32(), ld * static_cast<std::int64_t>(index) + i);
}

}  // namespace

FrameCode::FrameCode(Code& c, Val frame) : code(c) {
  const Args<Frame> args(c, frame);
  captures = args(&Frame::captures);
  params = args(&Frame::params);
  head = args(&Frame::head);
  b = args(&Frame::b);
  h = args(&Frame::h);
  q_len = args(&Frame::q_len);
  kv_len = args(&Frame::kv_len);
  origin = args(&Frame::origin);
}

At FrameCode::at() const {
  At at;
  at.b = b;
  at.h = h;
  at.q_len = q_len;
  at.kv_len = kv_len;
  at.origin = origin;
  at.captures = captures;
  at.params = params;
  return at;
}

Val FrameCode::head_field(std::uint32_t index, ir::Type type) const {
  return from_bits(code.load(code.i32(), code.at(head, code.i32(), static_cast<std::int64_t>(index))), type);
}

PairKernels::PairKernels(const ForwardParts& of, std::span<const compiler::CaptureSlot> captured, Isa isa, Unit u,
                         const char* name)
    : parts(of), captures(captured), unit(u), tiling(codegen::tiling(isa, u)), module(isa, name) {}

llvm::Function* PairKernels::define(const char* symbol, std::initializer_list<llvm::Type*> args) {
  return module.define(symbol, llvm::Type::getVoidTy(module.context()), std::vector(args));
}

llvm::Function* PairKernels::kernel(const char* symbol) {
  return define(symbol, {llvm::PointerType::get(module.context(), 0)});
}

void PairKernels::define_fields() {
  auto* pointer = llvm::PointerType::get(module.context(), 0);
  Code code(define(mod_symbol::head_fields, {pointer, pointer}));
  const FrameCode frame(code, code.arg(0));
  Expressions emit = expressions(frame.at());
  const auto& fields = parts.levels.head;
  for (std::size_t i = 0; i < fields.size(); ++i)
    code.store(to_bits(emit(fields[i]), fields[i]->type),
               code.at(code.arg(1), code.i32(), static_cast<std::int64_t>(i)));
  code.done();
  define_line_fields(mod_symbol::row_fields, ir::Level::Row);
  define_line_fields(mod_symbol::col_fields, ir::Level::Col);
}

void PairKernels::define_line_fields(const char* symbol, ir::Level level) {
  auto* pointer = llvm::PointerType::get(module.context(), 0);
  auto* i32 = llvm::Type::getInt32Ty(module.context());
  Code code(define(symbol, {pointer, i32, i32, pointer, llvm::Type::getInt64Ty(module.context())}));
  const FrameCode frame(code, code.arg(0));
  const bool rows = level == ir::Level::Row;
  std::vector<ir::Expr> fields = rows ? parts.levels.row : parts.levels.col;
  if (rows && parts.has_row_term) fields.push_back(parts.row_term());
  code.loop(code.integer(0), code.arg(2), tiling.width, [&](Val i) {
    At at = frame.at();
    (rows ? at.q : at.kv) = code.arg(1) + i + code.iota(width());
    const auto into = [&](std::size_t field) {
      return code.at(code.at(code.arg(3), code.i32(), code.arg(4) * static_cast<std::int64_t>(field)), code.i32(), i);
    };
    at.field = [&](ir::Level of, std::uint32_t index, ir::Type type) {
      return of == ir::Level::Head ? frame.head_field(index, type)
                                   : from_bits(code.load(Code::vector(code.i32(), width()), into(index)), type);
    };
    Expressions emit = expressions(at);
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const Val bits = to_bits(emit(fields[f]), fields[f]->type);
      code.store(bits.is_vector() ? bits : splat(bits, width()), into(f));
    }
  });
  code.done();
}

At PairKernels::row(const PairsCode& pairs, Val r) const {
  At at = pairs.frame.at();
  at.q = pairs.q + to_i32(r);
  at.field = [&pairs, r](ir::Level level, std::uint32_t index, ir::Type type) {
    if (level == ir::Level::Head) return pairs.frame.head_field(index, type);
    return from_bits(pairs.code.load(pairs.code.i32(), field_at(pairs, pairs.row, pairs.row_ld, index, r)), type);
  };
  return at;
}

At PairKernels::element(const PairsCode& pairs, Val r, Val c) const {
  At at = row(pairs, r);
  at.kv = pairs.kv + to_i32(c) + pairs.code.iota(width());
  at.field = [&pairs, c, lanes = width(), of_row = at.field](ir::Level level, std::uint32_t index, ir::Type type) {
    if (level != ir::Level::Col) return of_row(level, index, type);
    Code& code = pairs.code;
    return from_bits(code.load(Code::vector(code.i32(), lanes), field_at(pairs, pairs.col, pairs.col_ld, index, c)),
                     type);
  };
  return at;
}

Val PairKernels::load_s(const PairsCode& pairs, Val r, Val c) const {
  Code& code = pairs.code;
  const Val s = code.load(Code::vector(code.f32(), width()), pairs.scores_at(pairs.s, r, c));
  return unit == Unit::bf16 ? s * pairs.scale : s;
}

Val PairKernels::score(const PairsCode& pairs, const At& at, Expressions& emit, bool some) const {
  Val x = emit(parts.core());
  if (!x.is_vector()) x = splat(x, width());
  if (!some) return x;
  Val keep = at.kv < pairs.kv_end;
  if (parts.masked) keep = keep & emit(parts.mask());
  return select(keep, x, -infinity);
}

void PairKernels::store_p(const PairsCode& pairs, Val into, Val r, Val c, Val p) const {
  Code& code = pairs.code;
  if (unit == Unit::f32) return code.store(p, code.at(into, code.f32(), r * pairs.p_row + c));
  const Val narrow{code, code.ir().CreateFPTrunc(p.get(), Code::vector(code.bf16(), width()))};
  code.store(narrow, code.at(into, code.bf16(), r * pairs.p_row + c));
}

}  // namespace attune::codegen
