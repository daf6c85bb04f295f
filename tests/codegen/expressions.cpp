// tests/codegen/expressions.cpp — expressions compiled for an instruction set, and the same lanes for eval
#include "tests/codegen/expressions.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "codegen/llvm/mod.h"
#include "codegen/llvm/module.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/machine/tensor.h"
#include "tests/storable.h"

namespace attune::tests {
namespace {

using codegen::CaptureArg, codegen::Code, codegen::Expressions, codegen::Module, codegen::Val;

std::size_t bytes(DType dtype, std::span<const std::int64_t> extents, std::span<const std::int64_t> strides) {
  std::int64_t count = 1;
  for (std::size_t d = 0; d < extents.size(); ++d) count += (extents[d] - 1) * std::abs(strides[d]);
  return static_cast<std::size_t>(count) * size_of(dtype);
}

std::uint32_t word(ir::Type type, double value) {
  return type == ir::Type::F32 ? std::bit_cast<std::uint32_t>(static_cast<float>(value))
                               : static_cast<std::uint32_t>(static_cast<std::int32_t>(value));
}

codegen::At lanes_at(Code& code, const Vectors& shape) {
  const unsigned lanes = shape.lanes();
  const auto number = [&](std::size_t offset) { return code.member(code.i32(), code.arg(0), offset); };
  const auto numbers = [&](std::size_t offset) {
    return code.member(shape.uniform ? code.f32() : Code::vector(code.f32(), lanes), code.arg(0), offset);
  };
  const auto position = [&](std::size_t offset, bool runs) {
    const Val first = number(offset);
    return runs ? splat(first, lanes) + code.iota(lanes) : first;
  };
  codegen::At at;
  at.s = numbers(offsetof(Place, s));
  at.p = numbers(offsetof(Place, p));
  at.b = number(offsetof(Place, b));
  at.h = number(offsetof(Place, h));
  at.q = position(offsetof(Place, q), shape.rows);
  at.kv = position(offsetof(Place, kv), !shape.rows);
  at.q_len = number(offsetof(Place, q_len));
  at.kv_len = number(offsetof(Place, kv_len));
  at.origin = number(offsetof(Place, origin));
  at.captures = code.arg(1);
  at.field = [row = at.kv_len, head = at.q_len, col = at.s](ir::Level level, std::uint32_t, ir::Type) {
    return level == ir::Level::Head ? head : level == ir::Level::Row ? row : col;
  };
  at.params = code.arg(2);
  return at;
}

std::string object(const Vectors& shape, std::span<const ir::Expr> roots,
                   std::span<const compiler::CaptureSlot> captures, std::span<const std::int32_t> bound) {
  Module module(shape.isa, "expressions");
  auto* pointer = llvm::PointerType::get(module.context(), 0);
  const std::array<llvm::Type*, 4> args{pointer, pointer, pointer, pointer};
  Code code(module.define("expressions", llvm::Type::getVoidTy(module.context()), args));
  Expressions emit(shape.isa, captures, lanes_at(code, shape));
  for (std::size_t i = 1; i < bound.size(); ++i) emit.bind(static_cast<std::uint32_t>(i), code.integer(bound[i]));
  for (std::size_t i = 0; i < roots.size(); ++i) {
    Val x = emit(roots[i]);
    if (roots[i]->type == ir::Type::Bool) x = zero_one(x);
    if (!x.is_vector()) x = splat(x, shape.lanes());
    code.store(x, code.at(code.arg(3), code.i32(), static_cast<std::int64_t>(i) * 16));
  }
  code.done();
  return std::move(module).object();
}

}  // namespace

std::vector<Isa> supported_isas() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16})
    if (runtime::cpu::supports(isa)) out.push_back(isa);
  return out;
}

Captured::Captured(DType dtype, std::span<const std::int64_t> extents, std::span<const std::int64_t> strides) {
  memory_.emplace(bytes(dtype, extents, strides));
  std::int64_t before = 0;
  for (std::size_t d = 0; d < extents.size(); ++d) before += std::max<std::int64_t>(0, (1 - extents[d]) * strides[d]);
  tensor_ = Tensor(memory_->data() + before * static_cast<std::int64_t>(size_of(dtype)), dtype, extents, strides);
}

std::int64_t Captured::offset(std::span<const std::int32_t> index) const {
  std::int64_t at = 0;
  for (std::size_t d = 0; d < index.size(); ++d)
    at += std::clamp<std::int64_t>(index[d], 0, tensor_.shape[d] - 1) * tensor_.strides[d];
  return at;
}

double Captured::at(std::span<const std::int32_t> index) const { return runtime::load(tensor_, offset(index)); }

void Captured::fill(const std::function<double()>& value) {
  const auto rank = static_cast<std::size_t>(tensor_.rank);
  std::array<std::int32_t, 4> i{};
  for (bool more = true; more;) {
    runtime::store(tensor_, offset(std::span(i).first(rank)), storable(tensor_.dtype, value()));
    more = false;
    for (std::size_t d = rank; d-- > 0 && !more;) {
      more = ++i[d] < tensor_.shape[d];
      if (!more) i[d] = 0;
    }
  }
}

ir::Env env_at(const Vectors& shape, const Place& place, unsigned lane) {
  const auto by = [&](std::int32_t first, bool runs) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(first) + (runs ? lane : 0));
  };
  ir::Env env;
  env.s = place.s[shape.uniform ? 0 : lane];
  env.p = place.p[shape.uniform ? 0 : lane];
  env.b = place.b;
  env.h = place.h;
  env.q = by(place.q, shape.rows);
  env.kv = by(place.kv, !shape.rows);
  env.q_len = place.q_len;
  env.kv_len = place.kv_len;
  env.origin = place.origin;
  return env;
}

Compiled::Compiled(const Vectors& shape, std::span<const ir::Expr> roots,
                   std::span<const compiler::CaptureSlot> captures, std::span<const std::int32_t> bound)
    : loaded_(object(shape, roots, captures, bound)), run_(loaded_.find<Run>("expressions")) {
  for (const ir::Expr& e : roots) types_.push_back(e->type);
  for (const ir::Expr& e : ir::in_order(roots)) {
    if (e->op != ir::Op::Param) continue;
    if (param_types_.size() <= e->bits) param_types_.resize(e->bits + 1, ir::Type::F32);
    param_types_[e->bits] = e->type;
  }
}

std::vector<double> Compiled::operator()(const Place& place, std::span<const Captured* const> captures,
                                         std::span<const double> params) const {
  std::vector<CaptureArg> args(captures.size());
  for (std::size_t i = 0; i < captures.size(); ++i) {
    const Tensor& t = captures[i]->tensor();
    args[i].data = t.data;
    std::copy_n(t.shape.begin(), 4, args[i].extent);
    std::copy_n(t.strides.begin(), 4, args[i].stride);
  }
  std::vector<std::uint32_t> words(param_types_.size()), out(types_.size() * 16);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(param_types_[i], params[i]);
  run_(&place, args.data(), words.data(), out.data());
  std::vector<double> values;
  for (std::size_t i = 0; i < out.size(); ++i)
    values.push_back(types_[i / 16] == ir::Type::F32 ? std::bit_cast<float>(out[i])
                                                     : static_cast<double>(static_cast<std::int32_t>(out[i])));
  return values;
}

}  // namespace attune::tests
