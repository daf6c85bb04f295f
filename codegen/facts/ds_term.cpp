// codegen/facts/ds_term.cpp — the gradient of a dense bias, such as bias[h, q, kv]: dS times a factor, summed over
// batch entries or heads
#include "codegen/facts/ds_term.h"

#include <algorithm>

namespace attune::codegen {
namespace {

using ir::Expr, ir::Input, ir::Op;

std::optional<Along> along(const Expr& index) {
  if (ir::is_literal(index, 0)) return Along{};
  const bool in_groups = (index->op == Op::Div || index->op == Op::FloorDiv) && ir::is_literal(index->args[1]);
  const Expr& of = in_groups ? index->args[0] : index;
  const auto by = in_groups ? static_cast<std::int64_t>(ir::literal_value(*index->args[1])) : 1;
  if (of->op != Op::Input || by < 1) return std::nullopt;
  switch (static_cast<Input>(of->bits)) {
    case Input::B: return Along{Along::batch, by};
    case Input::H: return Along{Along::head, by};
    case Input::Q: return in_groups ? std::nullopt : std::optional(Along{Along::query});
    case Input::KV: return in_groups ? std::nullopt : std::optional(Along{Along::key});
    default: return std::nullopt;
  }
}

/// The number of terms that add to the tensor's gradient.
std::ptrdiff_t terms_of(const compiler::Mod& mod, std::uint32_t capture) {
  std::ptrdiff_t out = 0;
  for (const compiler::Derivative* one : {&mod.dscore, &mod.dprob, &mod.dsink})
    out += std::ranges::count(one->captures, capture, &compiler::Scatter::capture);
  return out;
}

/// The term, if it has this form.
std::optional<DsTerm> as_ds(const compiler::Mod& mod, const compiler::Scatter& term) {
  if (!term.loops.empty() || terms_of(mod, term.capture) != 1) return std::nullopt;
  DsTerm out{.capture = term.capture, .along = {}, .factor = nullptr};
  for (const Expr& index : term.index) {
    const std::optional<Along> one = along(index);
    if (!one) return std::nullopt;
    out.along.push_back(*one);
  }
  const auto count = [&](Along::Of what) { return std::ranges::count(out.along, what, &Along::of); };
  if (count(Along::query) != 1 || count(Along::key) != 1 || count(Along::batch) > 1 || count(Along::head) > 1)
    return std::nullopt;
  // dS has the factor d score / d s already.
  if (term.value->digest == mod.dscore.by->digest) return out;
  const bool of_pair = ir::uses(term.value, Input::S) || ir::uses(term.value, Input::P) || term.value->random;
  if (!ir::is_literal(mod.dscore.by, 1) || of_pair) return std::nullopt;
  out.factor = term.value;
  return out;
}

}  // namespace

std::vector<DsTerm> ds_terms(const compiler::Mod& mod, const Wanted& wanted) {
  std::vector<DsTerm> out;
  for (const compiler::Scatter& one : mod.dscore.captures)
    if (wanted[one.capture])
      if (std::optional<DsTerm> term = as_ds(mod, one)) out.push_back(std::move(*term));
  return out;
}

}  // namespace attune::codegen
