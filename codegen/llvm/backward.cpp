// codegen/llvm/backward.cpp — the backward kernels around the user's expressions: recomputed probabilities, gradients
#include "codegen/llvm.h"
#include "codegen/llvm/pairs.h"
#include "codegen/llvm/scatter.h"

namespace attune::codegen {
namespace {

/// The arguments of a Differentiate.
struct DifferentiateCode : PairsCode {
  DifferentiateCode(Code& c, const Args<Differentiate>& args)
      : PairsCode(c, args), dp(args(&Differentiate::dp)), p(args(&Differentiate::p)), ds(args(&Differentiate::ds)),
        lse(args(&Differentiate::lse)), delta(args(&Differentiate::delta)), sum(args(&Differentiate::sum)),
        gradients(args(&Differentiate::gradients)) {}
  explicit DifferentiateCode(Code& c) : DifferentiateCode(c, Args<Differentiate>(c, c.arg(0))) {}
  Val dp, p, ds, lse, delta, sum, gradients;
};

class Backward {
 public:
  Backward(const compiler::Mod& mod, const Wanted& wanted, Isa isa, Unit unit)
      : parts_(backward_parts(mod, wanted)), kernels_(parts_, mod.captures, isa, unit, "backward") {}

  std::string object(Listing* listing) && {
    kernels_.define_fields();
    differentiate(mod_symbol::differentiate_all, false);
    differentiate(mod_symbol::differentiate_some, true);
    if (parts_.delta_degree == 0) sum_rows();
    return std::move(kernels_.module).object(listing);
  }

 private:
  unsigned width() const { return kernels_.width(); }

  /// A row's values in registers.
  struct Row {
    Val r, lse, delta, live;
  };
  Row row(const DifferentiateCode& d, Val r) {
    const Val lse = splat(d.code.load(d.code.f32(), d.of_row(d.lse, r)), width());
    const Val delta = splat(d.code.load(d.code.f32(), d.of_row(d.delta, r)), width());
    return {r, lse, delta, lse != infinity};
  }

  /// A register of pairs: which are kept, their p, and the gradients after and before prob.
  struct Pairs {
    Val keep, p, dp_after, dp;
  };
  Pairs pairs(const DifferentiateCode& d, const Row& row, const At& at, Expressions& emit, Val c, bool some) {
    Code& code = d.code;
    const Val x = kernels_.score(d, at, emit, some);
    const Val keep = (x != -infinity) & row.live;
    const Val p = exp2_softmax(kernels_.isa(), (x - row.lse) * log2e, kernels_.degree());
    Pairs out{keep, select(keep, p, like(p, 0.0)), {}, {}};
    emit.give_p(out.p);
    out.dp = out.dp_after = code.load(Code::vector(code.f32(), width()), d.scores_at(d.dp, row.r, c));
    if (!ir::is_literal(parts_.prob_slope(), 1)) out.dp = out.dp_after * emit(parts_.prob_slope());
    return out;
  }

  void pair(const DifferentiateCode& d, Scattering& scattering, const Row& row, Val c, bool some, std::span<Val> sums) {
    At at = kernels_.element(d, row.r, c);
    at.s = kernels_.load_s(d, row.r, c);
    Expressions emit = kernels_.expressions(at);
    const Pairs of = pairs(d, row, at, emit, c, some);
    // Values of a masked-out pair may be NaN: select 0, never multiply by 0.
    const Val ds_after = of.p * (of.dp - row.delta);
    const bool plain = ir::is_literal(parts_.score_slope(), 1);
    const Val ds = plain ? ds_after : ds_after * emit(parts_.score_slope());
    const Val p_after = parts_.has_prob ? select(of.keep, like(of.p, emit(parts_.prob())), like(of.p, 0.0)) : of.p;
    kernels_.store_p(d, d.p, row.r, c, p_after);
    kernels_.store_p(d, d.ds, row.r, c, select(of.keep, ds, like(ds, 0.0)));
    scattering.add(emit, of.keep, ds_after, of.dp_after, sums);
  }

  void differentiate(const char* symbol, bool some) {
    Code code(kernels_.kernel(symbol));
    const DifferentiateCode d(code);
    Scattering scattering(kernels_, parts_, d, d.gradients);
    const Val zero = splat(code.real(0), width());
    const Code::Carried start(scattering.head_count(), zero);
    const auto sums = code.loop(code.index(0), d.rows, 1, start, [&](Val r, const Code::Carried& heads) {
      const Row of = row(d, r);
      Code::Carried before = heads;
      before.insert(before.end(), scattering.row_count(), zero);
      Code::Carried after = code.loop(d.first, d.last, 2 * width(), before, [&](Val c, Code::Carried carried) {
        for (unsigned u = 0; u < 2; ++u)
          pair(d, scattering, of, c + static_cast<std::int64_t>(u * width()), some, carried);
        return carried;
      });
      scattering.end_row(r, after);
      after.resize(scattering.head_count());
      return after;
    });
    scattering.end(sums);
    code.done();
  }

  void sum_rows() {
    Code code(kernels_.kernel(mod_symbol::sum_rows));
    const DifferentiateCode d(code);
    code.loop(code.index(0), d.rows, 1, [&](Val r) {
      const Row of = row(d, r);
      const auto sum = code.loop(d.first, d.last, width(), {splat(code.real(0), width())},
                                 [&](Val c, const Code::Carried& before) {
                                   At at = kernels_.element(d, r, c);
                                   at.s = kernels_.load_s(d, r, c);
                                   Expressions emit = kernels_.expressions(at);
                                   const Pairs x = pairs(d, of, at, emit, c, true);
                                   const Val term = x.p * x.dp;
                                   return Code::Carried{before[0] + select(x.keep, term, like(term, 0.0))};
                                 });
      const Val into = d.of_row(d.sum, r);
      code.store(code.load(code.f32(), into) + sum_of_lanes(sum[0]), into);
    });
    code.done();
  }

  BackwardParts parts_;
  PairKernels kernels_;
};

}  // namespace

std::string backward_object(const compiler::Mod& mod, const Wanted& wanted, Isa isa, Unit unit, Listing* listing) {
  return Backward(mod, wanted, isa, unit).object(listing);
}

}  // namespace attune::codegen
