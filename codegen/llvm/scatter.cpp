// codegen/llvm/scatter.cpp — adds to the gradients of captured tensors, in a way that suits how their indices vary
#include "codegen/llvm/scatter.h"

#include <array>
#include <cstddef>
#include <numeric>

namespace attune::codegen {
namespace {

using Reach = Scattered::Reach;

constexpr const char* add_lanes_symbol = "add_lanes";

Val as_lanes(const Val& x, unsigned lanes) { return x.is_vector() ? x : splat(x, lanes); }

Val reversed(const Val& x) {
  std::vector<int> lanes(x.lanes());
  std::iota(lanes.rbegin(), lanes.rend(), 0);
  return shuffle(x, lanes);
}

}  // namespace

Scattering::Scattering(PairKernels& kernels, const BackwardParts& parts, const PairsCode& pairs, Val gradients)
    : kernels_(kernels), parts_(parts), pairs_(pairs), code_(pairs.code), gradients_(gradients) {
  for (const Scattered& s : parts.scattered) {
    const bool summed = s.loops.empty() && (s.reach == Reach::Head || s.reach == Reach::Row);
    (!summed ? others_ : s.reach == Reach::Head ? heads_ : rows_).push_back(&s);
  }
}

void Scattering::add(Expressions& emit, Val keep, Val ds, Val dp, std::span<Val> sums) {
  std::size_t next = 0;
  for (const auto* list : {&heads_, &rows_})
    for (const Scattered* s : *list) {
      sums[next] = sums[next] + term(*s, emit, keep, ds, dp);
      ++next;
    }
  for (const Scattered* s : others_) {
    for (std::size_t i = 0; i <= s->rank; ++i) emit.before_loops(parts_.levels.element[s->first + i]);
    looped(*s, emit, keep, ds, dp, 0);
  }
}

void Scattering::looped(const Scattered& s, Expressions& emit, Val keep, Val ds, Val dp, std::size_t loop) {
  if (loop < s.loops.size()) {
    code_.loop(code_.integer(0), code_.integer(s.loops[loop].count), 1, [&](Val i) {
      emit.bind(s.loops[loop].binder, i);
      looped(s, emit, keep, ds, dp, loop + 1);
    });
    return;
  }
  const Indices at = indices(s, emit);
  const Val of = term(s, emit, keep, ds, dp);
  if (s.reach == Reach::Head || s.reach == Reach::Row) {
    add_one(s, at, sum_of_lanes(of));
  } else {
    scatter(s, at, of);
  }
}

void Scattering::end_row(Val r, std::span<const Val> sums) {
  if (rows_.empty()) return;
  Expressions emit = kernels_.expressions(kernels_.row(pairs_, r));
  for (std::size_t i = 0; i < rows_.size(); ++i)
    add_one(*rows_[i], indices(*rows_[i], emit), sum_of_lanes(sums[heads_.size() + i]));
}

void Scattering::end(std::span<const Val> sums) {
  if (heads_.empty()) return;
  Expressions emit = kernels_.expressions(kernels_.row(pairs_, code_.index(0)));
  for (std::size_t i = 0; i < heads_.size(); ++i) add_one(*heads_[i], indices(*heads_[i], emit), sum_of_lanes(sums[i]));
}

Scattering::Indices Scattering::indices(const Scattered& s, Expressions& emit) const {
  Indices out;
  for (std::size_t i = 0; i < s.rank; ++i) out.push_back(emit(index(s, i)));
  return out;
}

/// For a masked-out pair the value may be NaN: select 0, never multiply by 0.
Val Scattering::term(const Scattered& s, Expressions& emit, Val keep, Val ds, Val dp) const {
  const Val upstream = s.by_prob ? dp : ds;
  const Val product = ir::is_literal(value(s), 1) ? upstream : upstream * emit(value(s));
  return select(keep, product, like(product, 0.0));
}

Val Scattering::gradient(const Scattered& s) const {
  return code_.load(code_.pointer(), code_.at(gradients_, code_.pointer(), s.capture));
}

Val Scattering::extent(const Scattered& s, std::size_t i) const {
  return code_.member(code_.i64(), pairs_.frame.captures,
                      s.capture * sizeof(CaptureArg) + offsetof(CaptureArg, extent) + i * sizeof(std::int64_t));
}

/// The row-major offset from index `from` on; clamps indices as the read did.
Val Scattering::offset(const Scattered& s, const Indices& at, std::size_t from, Val start) const {
  Val out = start;
  for (std::size_t i = from; i < s.rank; ++i) {
    const Val n = extent(s, i);
    const Val last = to_i32(min(n - 1, like(n, 0x7fffffff)));
    const Val inside = to_i64(min(max(at[i], like(at[i], 0)), like(at[i], last)));
    out = i == from && from == 0 ? inside : out * n + inside;
  }
  return out;
}

void Scattering::add_at(Val pointer, Val term) { code_.store(code_.load(term.type(), pointer) + term, pointer); }

void Scattering::add_one(const Scattered& s, const Indices& at, Val sum) {
  add_at(code_.at(gradient(s), code_.f32(), offset(s, at, 0, code_.index(0))), sum);
}

void Scattering::scatter(const Scattered& s, const Indices& at, Val term) {
  // An index that was expected to vary may turn out to be the same in every lane.
  bool varies = false;
  for (const Val& i : at) varies = varies || i.is_vector();
  if (!varies) return add_one(s, at, sum_of_lanes(term));
  s.reach == Reach::Run&& at.back().is_vector() ? scatter_run(s, at, term) : scatter_lanes(s, at, term);
}

void Scattering::scatter_run(const Scattered& s, const Indices& at, Val term) {
  const std::int64_t beyond = kernels_.width() - 1;
  const Val low = to_i64(lane(at.back(), s.step > 0 ? 0 : kernels_.width() - 1));
  const Val n = extent(s, s.rank - 1);
  code_.branch((low >= 0) & (low + beyond < n),
               [&] {
                 Indices before = at;
                 before.back() = code_.integer(0);
                 const Val first = offset(s, before, 0, code_.index(0)) + low;
                 add_at(code_.at(gradient(s), code_.f32(), first), s.step > 0 ? term : reversed(term));
                 return Code::Carried{};
               },
               [&] {
                 scatter_lanes(s, at, term);
                 return Code::Carried{};
               });
}

void Scattering::scatter_lanes(const Scattered& s, const Indices& at, Val term) {
  Indices lanes;
  for (const Val& i : at) lanes.push_back(as_lanes(i, kernels_.width()));
  code_.call(add_lanes(), {gradient(s), offset(s, lanes, 0, code_.index(0)), term});
}

/// Adds lane by lane, because two lanes may have the same address.
llvm::Function* Scattering::add_lanes() {
  if (llvm::Function* made = kernels_.module.llvm().getFunction(add_lanes_symbol)) return made;
  const std::array<llvm::Type*, 3> types{code_.pointer(), Code::vector(code_.i64(), kernels_.width()),
                                         Code::vector(code_.f32(), kernels_.width())};
  llvm::Function* made = kernels_.module.define_local(add_lanes_symbol,
                                                      llvm::Type::getVoidTy(kernels_.module.context()), types);
  Code code(made);
  const Val base = code.arg(0), offsets = code.arg(1), terms = code.arg(2);
  for (unsigned i = 0; i < kernels_.width(); ++i) {
    const Val to = code.at(base, code.f32(), lane(offsets, i));
    code.store(code.load(code.f32(), to) + lane(terms, i), to);
  }
  code.done();
  return made;
}

}  // namespace attune::codegen
