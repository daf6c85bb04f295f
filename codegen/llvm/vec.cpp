// codegen/llvm/vec.cpp — LLVM values, scalars and vectors, with operators that read as arithmetic; loops and branches;
// operations across lanes
#include "codegen/llvm/vec.h"

#include <array>
#include <llvm/IR/Intrinsics.h>
#include <numeric>
#include <utility>

namespace attune::codegen {
namespace {

llvm::IRBuilder<>& ir(const Val& a) { return a.code().ir(); }

/// Splats the scalar if the other is a vector.
void align(Val& a, Val& b) {
  if (a.is_vector() && !b.is_vector()) b = splat(b, a.lanes());
  if (b.is_vector() && !a.is_vector()) a = splat(a, b.lanes());
}

llvm::Type* with_element(const Val& a, llvm::Type* element) {
  return a.is_vector() ? Code::vector(element, a.lanes()) : element;
}

using Combine = llvm::Value* (llvm::IRBuilderBase::*)(llvm::Value*, llvm::Value*, const llvm::Twine&);

Val compare(llvm::CmpInst::Predicate of_floats, llvm::CmpInst::Predicate of_ints, Val a, Val b) {
  align(a, b);
  return {a.code(), ir(a).CreateCmp(a.is_float() ? of_floats : of_ints, a.get(), b.get())};
}

Val reduce(Val a, Val (*combine)(Val, Val)) {
  for (unsigned n = a.lanes() / 2; n > 0; n /= 2) {
    std::vector<int> low(n), high(n);
    std::iota(low.begin(), low.end(), 0);
    std::iota(high.begin(), high.end(), static_cast<int>(n));
    a = combine(shuffle(a, low), shuffle(a, high));
  }
  return lane(a, 0);
}

}  // namespace

unsigned Val::lanes() const {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type());
  return vector ? vector->getNumElements() : 1;
}

Val like(const Val& model, double x) {
  llvm::Type* type = model.type();
  return {model.code(), model.is_float() ? llvm::ConstantFP::get(type, x)
                                         : static_cast<llvm::Value*>(llvm::ConstantInt::get(
                                               type, static_cast<std::uint64_t>(static_cast<std::int64_t>(x)), true))};
}
Val like(const Val& model, Val x) { return model.is_vector() && !x.is_vector() ? splat(x, model.lanes()) : x; }

#define ATTUNE_VAL_FLOAT_INT(name, of_floats, of_ints)                                                     \
  Val name(Val a, Val b) {                                                                                 \
    align(a, b);                                                                                           \
    return {a.code(), a.is_float() ? ir(a).of_floats(a.get(), b.get()) : ir(a).of_ints(a.get(), b.get())}; \
  }
ATTUNE_VAL_FLOAT_INT(operator+, CreateFAdd, CreateAdd)
ATTUNE_VAL_FLOAT_INT(operator-, CreateFSub, CreateSub)
ATTUNE_VAL_FLOAT_INT(operator*, CreateFMul, CreateMul)
ATTUNE_VAL_FLOAT_INT(operator/, CreateFDiv, CreateSDiv)
#undef ATTUNE_VAL_FLOAT_INT

#define ATTUNE_VAL_INT(name, of_ints)                   \
  Val name(Val a, Val b) {                              \
    align(a, b);                                        \
    return {a.code(), ir(a).of_ints(a.get(), b.get())}; \
  }
ATTUNE_VAL_INT(operator%, CreateSRem)
ATTUNE_VAL_INT(operator&, CreateAnd)
ATTUNE_VAL_INT(operator|, CreateOr)
ATTUNE_VAL_INT(operator^, CreateXor)
ATTUNE_VAL_INT(operator<<, CreateShl)
ATTUNE_VAL_INT(operator>>, CreateAShr)
ATTUNE_VAL_INT(shift_right_logical, CreateLShr)
#undef ATTUNE_VAL_INT

using Cmp = llvm::CmpInst;
Val operator==(Val a, Val b) { return compare(Cmp::FCMP_OEQ, Cmp::ICMP_EQ, a, b); }
Val operator!=(Val a, Val b) { return compare(Cmp::FCMP_UNE, Cmp::ICMP_NE, a, b); }
Val operator<(Val a, Val b) { return compare(Cmp::FCMP_OLT, Cmp::ICMP_SLT, a, b); }
Val operator<=(Val a, Val b) { return compare(Cmp::FCMP_OLE, Cmp::ICMP_SLE, a, b); }
Val operator>(Val a, Val b) { return compare(Cmp::FCMP_OGT, Cmp::ICMP_SGT, a, b); }
Val operator>=(Val a, Val b) { return compare(Cmp::FCMP_OGE, Cmp::ICMP_SGE, a, b); }

// One instruction on x86; maxnum would take three to handle NaN.
Val max(Val a, Val b) {
  align(a, b);
  return select(a > b, a, b);
}
Val min(Val a, Val b) {
  align(a, b);
  return select(a < b, a, b);
}

Val operator-(Val a) { return {a.code(), a.is_float() ? ir(a).CreateFNeg(a.get()) : ir(a).CreateNeg(a.get())}; }
Val operator!(Val a) { return {a.code(), ir(a).CreateNot(a.get())}; }

Val fma(Val a, Val b, Val c) {
  align(a, b);
  align(a, c);
  align(b, c);
  return a.code().intrinsic(llvm::Intrinsic::fmuladd, {a.type()}, {a, b, c});
}

Val select(Val condition, Val a, Val b) {
  align(a, b);
  if (condition.is_vector()) {
    a = like(condition, a);
    b = like(condition, b);
  }
  return {a.code(), ir(a).CreateSelect(condition.get(), a.get(), b.get())};
}

Val is_nan(Val a) { return {a.code(), ir(a).CreateFCmpUNO(a.get(), a.get())}; }
Val floor(Val a) { return a.code().intrinsic(llvm::Intrinsic::floor, {a.type()}, {a}); }
Val round_even(Val a) { return a.code().intrinsic(llvm::Intrinsic::roundeven, {a.type()}, {a}); }

Val as_int(Val a) { return {a.code(), ir(a).CreateBitCast(a.get(), with_element(a, a.code().i32()))}; }
Val as_float(Val a) { return {a.code(), ir(a).CreateBitCast(a.get(), with_element(a, a.code().f32()))}; }
Val to_float(Val a) { return {a.code(), ir(a).CreateSIToFP(a.get(), with_element(a, a.code().f32()))}; }
Val to_int(Val a) { return {a.code(), ir(a).CreateFPToSI(a.get(), with_element(a, a.code().i32()))}; }
Val to_i64(Val a) { return {a.code(), ir(a).CreateSExtOrTrunc(a.get(), with_element(a, a.code().i64()))}; }
Val to_i32(Val a) { return {a.code(), ir(a).CreateSExtOrTrunc(a.get(), with_element(a, a.code().i32()))}; }
Val zero_one(Val a) { return {a.code(), ir(a).CreateZExt(a.get(), with_element(a, a.code().i32()))}; }

Val steady(Val load) {
  if (auto* instruction = llvm::dyn_cast<llvm::LoadInst>(load.get()))
    instruction->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(instruction->getContext(), {}));
  return load;
}

// insertelement and shufflevector, which the back end recognises as a broadcast.
Val splat(Val scalar, unsigned lanes) {
  return lanes == 1 ? scalar : Val{scalar.code(), ir(scalar).CreateVectorSplat(lanes, scalar.get())};
}
Val lane(Val vector, unsigned i) {
  return vector.is_vector() ? Val{vector.code(), ir(vector).CreateExtractElement(vector.get(), i)} : vector;
}
Val with_lane(Val vector, unsigned i, Val scalar) {
  return {vector.code(), ir(vector).CreateInsertElement(vector.get(), scalar.get(), i)};
}
Val shuffle(Val a, Val b, std::span<const int> lanes) {
  return {a.code(), ir(a).CreateShuffleVector(a.get(), b.get(), llvm::ArrayRef<int>(lanes.data(), lanes.size()))};
}
Val shuffle(Val a, std::span<const int> lanes) {
  return {a.code(), ir(a).CreateShuffleVector(a.get(), llvm::ArrayRef<int>(lanes.data(), lanes.size()))};
}

Val sum_of_lanes(Val a) {
  return reduce(a, [](Val x, Val y) { return x + y; });
}
Val max_of_lanes(Val a) {
  return reduce(a, [](Val x, Val y) { return max(x, y); });
}
Val any(Val condition) {
  return condition.is_vector() ? Val{condition.code(), ir(condition).CreateOrReduce(condition.get())} : condition;
}

Code::Code(llvm::Function* function)
    : function_(function), ir_(llvm::BasicBlock::Create(function->getContext(), "entry", function)) {}

llvm::Type* Code::vector(llvm::Type* of, unsigned lanes) {
  return lanes == 1 ? of : llvm::FixedVectorType::get(of, lanes);
}

Val Code::iota(unsigned lanes) {
  if (lanes == 1) return integer(0);
  std::vector<std::uint32_t> all(lanes);
  std::iota(all.begin(), all.end(), 0u);
  return {*this, llvm::ConstantDataVector::get(ir_.getContext(), all)};
}

Val Code::at(Val pointer, llvm::Type* type, Val count) {
  return {*this, ir_.CreateGEP(type, pointer.get(), to_i64(count).get())};
}

Val Code::load(llvm::Type* type, Val pointer) {
  const auto size = std::max<std::uint64_t>(1, type->getScalarSizeInBits() / 8);
  return {*this, ir_.CreateAlignedLoad(type, pointer.get(), llvm::Align(size))};
}
void Code::store(Val value, Val pointer) {
  const auto size = std::max<std::uint64_t>(1, value.type()->getScalarSizeInBits() / 8);
  ir_.CreateAlignedStore(value.get(), pointer.get(), llvm::Align(size));
}

Val Code::gather(llvm::Type* element, Val pointers, Val mask) {
  llvm::Type* type = vector(element, pointers.lanes());
  return {*this, ir_.CreateMaskedGather(type, pointers.get(), llvm::Align(element->getScalarSizeInBits() / 8),
                                        mask ? mask.get() : nullptr)};
}

Val Code::call(llvm::Function* callee, std::initializer_list<Val> args) {
  std::vector<llvm::Value*> values;
  for (const Val& a : args) values.push_back(a.get());
  return {*this, ir_.CreateCall(callee, values)};
}

Val Code::intrinsic(llvm::Intrinsic::ID id, std::initializer_list<llvm::Type*> types, std::initializer_list<Val> args) {
  std::vector<llvm::Value*> values;
  for (const Val& a : args) values.push_back(a.get());
  return {*this, ir_.CreateIntrinsic(id, std::vector<llvm::Type*>(types), values)};
}

Code::Carried Code::loop(Val begin, Val end, std::int64_t step, Carried carried,
                         const std::function<Carried(Val, const Carried&)>& body) {
  llvm::LLVMContext& context = ir_.getContext();
  auto* before = ir_.GetInsertBlock();
  auto* block = llvm::BasicBlock::Create(context, "loop", function_);
  auto* after = llvm::BasicBlock::Create(context, "after", function_);
  ir_.CreateCondBr((begin < end).get(), block, after);

  ir_.SetInsertPoint(block);
  llvm::PHINode* i = ir_.CreatePHI(begin.type(), 2);
  i->addIncoming(begin.get(), before);
  std::vector<llvm::PHINode*> phis;
  Carried inside;
  for (const Val& c : carried) {
    phis.push_back(ir_.CreatePHI(c.type(), 2));
    phis.back()->addIncoming(c.get(), before);
    inside.emplace_back(*this, phis.back());
  }
  const Carried next = body({*this, i}, inside);
  const Val stepped = Val(*this, i) + like(begin, static_cast<double>(step));
  auto* last = ir_.GetInsertBlock();
  i->addIncoming(stepped.get(), last);
  for (std::size_t n = 0; n < phis.size(); ++n) phis[n]->addIncoming(next[n].get(), last);
  ir_.CreateCondBr((stepped < end).get(), block, after);

  ir_.SetInsertPoint(after);
  Carried out;
  for (std::size_t n = 0; n < carried.size(); ++n) {
    llvm::PHINode* phi = ir_.CreatePHI(carried[n].type(), 2);
    phi->addIncoming(carried[n].get(), before);
    phi->addIncoming(next[n].get(), last);
    out.emplace_back(*this, phi);
  }
  return out;
}

void Code::loop(Val begin, Val end, std::int64_t step, const std::function<void(Val)>& body) {
  loop(begin, end, step, {}, [&](Val i, const Carried&) {
    body(i);
    return Carried{};
  });
}

Code::Carried Code::branch(Val condition, const std::function<Carried()>& then,
                           const std::function<Carried()>& otherwise) {
  llvm::LLVMContext& context = ir_.getContext();
  auto* yes = llvm::BasicBlock::Create(context, "then", function_);
  auto* no = llvm::BasicBlock::Create(context, "else", function_);
  auto* join = llvm::BasicBlock::Create(context, "join", function_);
  ir_.CreateCondBr(condition.get(), yes, no);
  const auto fill = [&](llvm::BasicBlock* block, const std::function<Carried()>& with) {
    ir_.SetInsertPoint(block);
    Carried out = with();
    block = ir_.GetInsertBlock();
    ir_.CreateBr(join);
    return std::pair(block, std::move(out));
  };
  const auto [yes_end, a] = fill(yes, then);
  const auto [no_end, b] = fill(no, otherwise);
  ir_.SetInsertPoint(join);
  Carried out;
  for (std::size_t n = 0; n < a.size(); ++n) {
    llvm::PHINode* phi = ir_.CreatePHI(a[n].type(), 2);
    phi->addIncoming(a[n].get(), yes_end);
    phi->addIncoming(b[n].get(), no_end);
    out.emplace_back(*this, phi);
  }
  return out;
}

void Code::when(Val condition, const std::function<void()>& then) {
  branch(
      condition,
      [&] {
        then();
        return Carried{};
      },
      [] { return Carried{}; });
}

namespace {

// ---- across lanes of several registers ------------------------------------------------------------------------------

// Each shuffle here is one x86 instruction: it stays within 128-bit quarters, or moves whole quarters.

/// Picks lanes 4g + pick[0..3] in each quarter g; picks of 4 and more take from `b`.
Val within_quarters(Val a, Val b, const int (&pick)[4]) {
  const int n = static_cast<int>(a.lanes());
  std::vector<int> lanes;
  for (int g = 0; g < n; g += 4)
    for (const int p : pick) lanes.push_back(p < 4 ? g + p : n + g + p - 4);
  return codegen::shuffle(a, b, lanes);
}

/// Every other quarter of a, then of b, starting with the first or the second.
Val every_other_quarter(Val a, Val b, int first) {
  const int n = static_cast<int>(a.lanes());
  std::vector<int> lanes;
  for (int quarter = first; quarter < 2 * n / 4; quarter += 2)
    for (int i = 0; i < 4; ++i) lanes.push_back(4 * quarter + i);
  return codegen::shuffle(a, b, lanes);
}

/// The parts concatenated.
Val joined(const std::vector<Val>& parts) {
  if (parts.size() == 1) return parts[0];
  const auto middle = parts.begin() + static_cast<std::ptrdiff_t>(parts.size() / 2);
  const Val low = joined({parts.begin(), middle}), high = joined({middle, parts.end()});
  std::vector<int> lanes(2 * low.lanes());
  std::iota(lanes.begin(), lanes.end(), 0);
  return codegen::shuffle(low, high, lanes);
}

}  // namespace

std::array<Val, 4> transposed(const std::vector<Val>& rows) {
  std::array<Val, 4> by_row;  // [i]: quarter q is row 4q + i
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<Val> quarters;
    for (std::size_t r = i; r < rows.size(); r += 4) quarters.push_back(rows[r]);
    by_row[i] = joined(quarters);
  }
  const Val low01 = within_quarters(by_row[0], by_row[1], {0, 4, 1, 5});
  const Val high01 = within_quarters(by_row[0], by_row[1], {2, 6, 3, 7});
  const Val low23 = within_quarters(by_row[2], by_row[3], {0, 4, 1, 5});
  const Val high23 = within_quarters(by_row[2], by_row[3], {2, 6, 3, 7});
  return {within_quarters(low01, low23, {0, 1, 4, 5}), within_quarters(low01, low23, {2, 3, 6, 7}),
          within_quarters(high01, high23, {0, 1, 4, 5}), within_quarters(high01, high23, {2, 3, 6, 7})};
}

Val sums_of_lanes(const std::vector<Val>& vectors) {
  std::vector<Val> sums = vectors;
  const auto halve = [&](auto evens, auto odds) {
    std::vector<Val> next;
    for (std::size_t i = 0; i < sums.size(); i += 2)
      next.push_back(evens(sums[i], sums[i + 1]) + odds(sums[i], sums[i + 1]));
    sums = std::move(next);
  };
  for (int level = 0; level < 2; ++level)
    halve(
        [](Val a, Val b) {
          return within_quarters(a, b, {0, 2, 4, 6});
        },
        [](Val a, Val b) {
          return within_quarters(a, b, {1, 3, 5, 7});
        });
  while (sums.size() > 1)
    halve([](Val a, Val b) { return every_other_quarter(a, b, 0); },
          [](Val a, Val b) { return every_other_quarter(a, b, 1); });
  return sums[0];
}

}  // namespace attune::codegen
