// codegen/llvm/read.cpp — elements of captured tensors: clamped, converted, and never from outside the tensor
#include "codegen/llvm/read.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "codegen/cpu.h"
#include "codegen/llvm/element.h"
#include "codegen/llvm/wide.h"

namespace attune::codegen {
namespace {

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
