// codegen/llvm/element.cpp — elements of tensors as f32 in registers, and back; elements of captured tensors, clamped
// and converted
#include "codegen/llvm/element.h"

#include <algorithm>
#include <limits>
#include <llvm/IR/Module.h>
#include <numeric>

#include "codegen/cpu.h"
#include "codegen/llvm/math.h"

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

namespace {

// ---- elements of captured tensors -----------------------------------------------------------------------------------

llvm::Type* stored(Code& code, DType type) {
  switch (type) {
    case DType::f32: return code.f32();
    case DType::f64: return code.f64();
    case DType::i64: return code.i64();
    case DType::i32: return code.i32();
    case DType::f16:
    case DType::bf16:
    case DType::i16: return code.i16();
    case DType::i8:
    case DType::u8:
    case DType::boolean:
    case DType::e4m3: return code.i8();
  }
  return nullptr;
}

Val as_i32(Val a, bool is_signed) {
  return {a.code(), a.code().ir().CreateIntCast(a.get(), Code::vector(a.code().i32(), a.lanes()), is_signed)};
}

/// A stored element as the language's type: f32, i32 or i1.
Val seen(Isa isa, DType type, Val x) {
  switch (type) {
    case DType::f32:
    case DType::i32: return x;
    case DType::f64: return narrow(x);
    case DType::f16:
    case DType::bf16:
    case DType::e4m3: return widened(isa, type, x);
    case DType::i64:
    case DType::i16:
    case DType::i8: return as_i32(x, true);
    case DType::u8: return as_i32(x, false);
    case DType::boolean: return x != 0;
  }
  return x;
}

class Read {
 public:
  Read(Isa isa, Val captures, std::uint32_t slot, DType type, std::span<const ReadIndex> index)
      : code_(captures.code()), isa_(isa), type_(type), element_(stored(code_, type)),
        arg_(code_.at(captures, code_.i8(), static_cast<std::int64_t>(slot * sizeof(CaptureArg)))),
        data_(member(code_.pointer(), offsetof(CaptureArg, data))), index_(index) {}

  Val operator()() {
    const auto varies = [](const ReadIndex& i) { return i.value.is_vector(); };
    const auto first = std::find_if(index_.begin(), index_.end(), varies);
    // Indices that are the same in every lane move the pointer; the others make a vector of offsets.
    Val offset = code_.index(0);
    for (std::size_t d = 0; d < index_.size(); ++d)
      if (!varies(index_[d])) offset = offset + clamped(d, index_[d].value) * stride(d);
    base_ = code_.at(data_, element_, offset);
    if (first == index_.end()) return seen(isa_, type_, steady(code_.load(element_, base_)));
    lanes_ = first->value.lanes();
    const bool alone = std::none_of(first + 1, index_.end(), varies);
    return alone && first->step != 0 ? in_a_row(static_cast<std::size_t>(first - index_.begin())) : one_by_one();
  }

 private:
  Val member(llvm::Type* type, std::size_t offset) { return steady(code_.member(type, arg_, offset)); }
  Val stride(std::size_t d) { return member(code_.i64(), offsetof(CaptureArg, stride) + d * sizeof(std::int64_t)); }
  /// The largest index of a dimension, at most 2^31 - 1 since indices are i32.
  Val last(std::size_t d) {
    const Val extent = member(code_.i64(), offsetof(CaptureArg, extent) + d * sizeof(std::int64_t));
    return to_i32(min(extent - 1, std::numeric_limits<std::int32_t>::max()));
  }
  Val clamped(std::size_t d, Val index) { return to_i64(min(max(index, 0), last(d))); }

  /// The index of one dimension steps by one: loads a contiguous vector if all of it is inside.
  Val in_a_row(std::size_t d) {
    const ReadIndex& index = index_[d];
    const Val begin = lane(index.value, 0), end = lane(index.value, lanes_ - 1);
    const Val lowest = index.step > 0 ? begin : end, highest = index.step > 0 ? end : begin;
    // If both ends are inside, nothing wraps in between.
    const Val fits = (lowest >= 0) & (lowest <= highest) & (highest <= last(d)) & (stride(d) == 1);
    return code_.branch(
        fits,
        [&] {
          const Val raw = steady(code_.load(Code::vector(element_, lanes_), code_.at(base_, element_, lowest)));
          const Val values = seen(isa_, type_, raw);
          return Code::Carried{index.step > 0 ? values : reversed(values)};
        },
        [&] { return Code::Carried{one_by_one()}; })[0];
  }

  Val reversed(Val a) {
    std::vector<int> order(lanes_);
    std::iota(order.rbegin(), order.rend(), 0);
    return codegen::shuffle(a, order);
  }

  Val one_by_one() {
    Val offsets;
    for (std::size_t d = 0; d < index_.size(); ++d) {
      if (!index_[d].value.is_vector()) continue;
      const Val offset = clamped(d, index_[d].value) * stride(d);
      offsets = offsets ? offsets + offset : offset;
    }
    if (element_->getScalarSizeInBits() >= 32)
      return seen(isa_, type_, code_.gather(element_, code_.at(base_, element_, offsets)));
    // A gather has elements of at least 32 bits and would read beyond the tensor.
    Val raw{code_, llvm::PoisonValue::get(Code::vector(element_, lanes_))};
    for (unsigned i = 0; i < lanes_; ++i)
      raw = with_lane(raw, i, steady(code_.load(element_, code_.at(base_, element_, lane(offsets, i)))));
    return seen(isa_, type_, raw);
  }

  Code& code_;
  Isa isa_;
  DType type_;
  llvm::Type* element_;
  Val arg_, data_;
  std::span<const ReadIndex> index_;
  Val base_{};
  unsigned lanes_ = 1;
};

}  // namespace

Val read_capture(Isa isa, Val captures, std::uint32_t slot, DType type, std::span<const ReadIndex> index) {
  return Read(isa, captures, slot, type, index)();
}

}  // namespace attune::codegen
