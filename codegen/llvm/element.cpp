// codegen/llvm/element.cpp — elements of tensors as f32 in registers, and back
#include "codegen/llvm/element.h"

#include <llvm/IR/Module.h>

namespace attune::codegen {
namespace {

/// True if the ISA has F16C. Without F16C, LLVM would call a function of the compiler's run-time library.
bool converts_f16(Isa isa) { return isa >= Isa::avx2; }

Val cast_to(Val a, llvm::Type* element) {
  llvm::Type* type = Code::vector(element, a.lanes());
  llvm::IRBuilder<>& ir = a.code().ir();
  return {a.code(), a.is_float() ? ir.CreateFPCast(a.get(), type) : ir.CreateZExtOrTrunc(a.get(), type)};
}

// f16 <-> f32 in f32 arithmetic, after Maratyszcza's FP16: no step reads or produces a subnormal f32, so the host's
// flush-to-zero mode has no effect.

Val f16_to_f32(Val half) {
  Code& code = half.code();
  const Val w = zero_extended(half) << 16;
  const Val sign = w & code.integer(INT32_MIN), twice = w + w;
  const Val normal = as_float(shift_right_logical(twice, 4) + code.integer(0x70000000)) * 0x1p-112;
  const Val subnormal = as_float(shift_right_logical(twice, 17) | code.integer(126 << 23)) - 0.5;
  const Val is_subnormal = shift_right_logical(twice, 27) == 0;
  return as_float(sign | as_int(select(is_subnormal, subnormal, normal)));
}

Val f32_to_f16(Val x) {
  Code& code = x.code();
  const Val bits = as_int(x), magnitude = bits & code.integer(0x7fffffff);
  const Val sign = shift_right_logical(bits, 16) & code.integer(0x8000);
  // Adding a power of two 13 binary places above the last kept bit rounds; it is at least the one for f16's subnormals.
  const Val exponent = max(magnitude & code.integer(0x7f800000), code.integer(0x38800000));
  const Val rounded = as_float(magnitude) * 0x1p+112 * 0x1p-110 + as_float(exponent + code.integer(0x07800000));
  const Val kept = as_int(rounded);
  const Val half = (shift_right_logical(kept, 13) & code.integer(0x7c00)) + (kept & code.integer(0x0fff));
  return sign | select(magnitude > code.integer(0x7f800000), code.integer(0x7e00), half);
}

Val f32_to_bf16(Val x) {
  Code& code = x.code();
  const Val bits = as_int(x), high = shift_right_logical(bits, 16);
  const Val rounded = shift_right_logical(bits + code.integer(0x7fff) + (high & code.integer(1)), 16);
  return select(is_nan(x), high | code.integer(0x40), rounded);
}

// e4m3 <-> f32, in the same way.

Val e4m3_to_f32(Val raw) {
  Code& code = raw.code();
  const Val w = zero_extended(raw), magnitude = w & code.integer(0x7f);
  const Val normal = (magnitude << 20) + code.integer(120 << 23);
  // 2^14 has steps of 2^-9, as e4m3's subnormals have.
  const Val subnormal = as_int(as_float(magnitude | code.integer(0x46800000)) - 0x1p14);
  const Val number = select(magnitude < code.integer(8), subnormal, normal);
  return as_float((w & code.integer(0x80)) << 24 |
                  select(magnitude == code.integer(0x7f), code.integer(0x7fc00000), number));
}

Val f32_to_e4m3(Val x) {
  Code& code = x.code();
  const Val bits = as_int(x), all = bits & code.integer(0x7fffffff);
  const Val magnitude = min(all, code.integer(0x43e00000));  // 448
  // Adding a power of two 20 binary places above the number leaves its eighths, rounded.
  const Val exponent = max(magnitude & code.integer(0x7f800000), code.integer(0x3c800000)),
            above = exponent + code.integer(20 << 23);
  const Val eighths = as_int(as_float(magnitude) + as_float(above)) - above;
  const Val number = (shift_right_logical(exponent, 23) - code.integer(121)) * code.integer(8) + eighths;
  return (shift_right_logical(bits, 24) & code.integer(0x80)) |
         select(all > code.integer(0x7f800000), code.integer(0x7f), number);
}

llvm::Type* raw_type(Code& code, DType type) {
  return type == DType::f32 ? code.f32() : type == DType::e4m3 ? code.i8() : code.i16();
}

/// fn(pointer, count): loads the first `count` lanes one by one.
llvm::Function* some_by_one(Code& caller, llvm::Type* element, unsigned lanes) {
  llvm::Module& module = *caller.function()->getParent();
  const std::string name = "some_" + std::to_string(element->getScalarSizeInBits());
  if (llvm::Function* made = module.getFunction(name)) return made;
  llvm::Type* vector = Code::vector(element, lanes);
  auto* type = llvm::FunctionType::get(vector, {caller.pointer(), caller.i64()}, false);
  auto* function = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, name, module);
  function->copyAttributesFrom(caller.function());
  Code code(function);
  const Val buffer{code, code.ir().CreateAlloca(vector)};
  code.store({code, llvm::Constant::getNullValue(vector)}, buffer);
  code.loop(code.index(0), code.arg(1), 1, [&](Val i) {
    code.store(code.load(element, code.at(code.arg(0), element, i)), code.at(buffer, element, i));
  });
  code.ir().CreateRet(code.load(vector, buffer).get());
  return function;
}

}  // namespace

llvm::Type* element_type(Code& code, DType type) {
  switch (type) {
    case DType::f16: return code.f16();
    case DType::bf16: return code.bf16();
    case DType::e4m3: return code.i8();
    default: return code.f32();
  }
}

Val zero_extended(Val a) { return cast_to(a, a.code().i32()); }

Val widened(Isa isa, DType type, Val raw) {
  Code& code = raw.code();
  switch (type) {
    case DType::f16:
      if (!converts_f16(isa)) return f16_to_f32(raw);
      return cast_to({code, code.ir().CreateBitCast(raw.get(), Code::vector(code.f16(), raw.lanes()))}, code.f32());
    case DType::bf16: return as_float(zero_extended(raw) << 16);
    case DType::e4m3: return e4m3_to_f32(raw);
    default: return raw;
  }
}

Val load_f32(Code& code, Isa isa, DType type, Val pointer, unsigned lanes) {
  return widened(isa, type, code.load(Code::vector(raw_type(code, type), lanes), pointer));
}

Val load_some_f32(Code& code, Isa isa, DType type, Val pointer, Val count, unsigned lanes) {
  llvm::Type* element = raw_type(code, type);
  if (isa < Isa::avx512) return widened(isa, type, code.call(some_by_one(code, element, lanes), {pointer, count}));
  llvm::Type* vector = Code::vector(element, lanes);
  auto* some = code.ir().CreateMaskedLoad(vector, pointer.get(), llvm::Align(element->getScalarSizeInBits() / 8),
                                          (code.iota(lanes) < splat(to_i32(count), lanes)).get(),
                                          llvm::Constant::getNullValue(vector));
  return widened(isa, type, {code, some});
}

void store_f32(Code& code, Isa isa, DType type, Val value, Val pointer) {
  switch (type) {
    case DType::f16:
      if (converts_f16(isa)) return code.store(cast_to(value, code.f16()), pointer);
      return code.store(cast_to(f32_to_f16(value), code.i16()), pointer);
    case DType::bf16: return code.store(cast_to(f32_to_bf16(value), code.i16()), pointer);
    case DType::e4m3: return code.store(cast_to(f32_to_e4m3(value), code.i8()), pointer);
    default: return code.store(value, pointer);
  }
}

NotFinite::NotFinite(Code& code, DType type) {
  const auto integer = [&](unsigned x, unsigned bits) { return Val{code, code.ir().getIntN(bits, x)}; };
  const unsigned bits = type == DType::f32 ? 32 : type == DType::e4m3 ? 8 : 16;
  none_ = integer(0, bits);
  magnitude_ = integer((1u << (bits - 1)) - 1, bits);
  infinity_ = integer(type == DType::f32    ? 0x7f800000
                      : type == DType::e4m3 ? 0x7f
                      : type == DType::f16  ? 0x7c00
                                            : 0x7f80,
                      bits);
}

Val NotFinite::worse(Val before, Val bits) const { return max(before, bits & magnitude_); }
Val NotFinite::found(Val worst) const { return worst >= infinity_; }

void each(Code& code, Val begin, Val end, unsigned width, const std::function<void(Val, unsigned)>& body) {
  const Val whole = begin + ((end - begin) & code.index(-static_cast<std::int64_t>(width)));
  code.loop(begin, whole, width, [&](Val i) { body(i, width); });
  code.loop(whole, end, 1, [&](Val i) { body(i, 1); });
}

}  // namespace attune::codegen
