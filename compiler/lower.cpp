// compiler/lower.cpp — the whole compiler, in order
#include "compiler/lower.h"

#include <array>
#include <optional>

#include <attune/error.h>

#include "compiler/check.h"
#include "compiler/distance.h"
#include "compiler/fold.h"

namespace attune::compiler {
namespace {

/// All expressions of a Mod except the scatters of its derivatives.
std::vector<ir::Expr> roots_of(const Mod& mod) {
  std::vector<ir::Expr> out;
  for (const ir::Expr& root : {mod.score, mod.mask, mod.prob, mod.sink, mod.dscore.by, mod.dprob.by, mod.fold.core,
                               mod.fold.row, mod.fold.scale, mod.fold.bias})
    if (root) out.push_back(root);
  return out;
}

std::size_t nodes_of(const Mod& mod) { return ir::in_order(roots_of(mod)).size(); }

class Spine {
 public:
  Spine(Mod& mod, Steps* steps) : mod_(mod), steps_(steps) {}

  template <class F>
  void operator()(const char* name, F step) {
    const ir::Digest before = steps_ ? mod_.digest() : ir::Digest{};
    const auto start = std::chrono::steady_clock::now();
    step();
    const auto took = std::chrono::steady_clock::now() - start;
#ifndef NDEBUG
    for (const ir::Expr& root : roots_of(mod_)) {
      if (!verified_.emplace(root->digest, root).second) continue;
      if (const auto broken = ir::verify(root, mod_.signature()))
        throw Bug(std::string("after ") + name + " an expression is broken: " + *broken);
    }
#endif
    if (!steps_) return;
    const bool changed = steps_->steps.empty() || mod_.digest() != before;
    steps_->steps.push_back({name, changed && steps_->keep_text ? mod_.text() : "", took, nodes_of(mod_)});
  }

 private:
  Mod& mod_;
  Steps* steps_;
#ifndef NDEBUG
  ir::DigestMap<ir::Expr> verified_;  ///< expressions never change
#endif
};

}  // namespace

ir::Bounds coordinate_bounds() {
  ir::Bounds bounds;
  for (const ir::Input which : {ir::Input::B, ir::Input::H, ir::Input::Q, ir::Input::KV, ir::Input::Origin})
    bounds[which] = {0, static_cast<double>(max_length - 1)};
  for (const ir::Input which : {ir::Input::QLen, ir::Input::KVLen})
    bounds[which] = {0, static_cast<double>(max_length)};
  return bounds;
}

LoweredMod lower(BoundMod traced, Steps* steps) {
  LoweredMod out{std::move(traced), {}, {}, {}};
  Mod& mod = out.mod;
  Spine step(mod, steps);
  const ir::Bounds bounds = coordinate_bounds();
  std::vector<Rewrite>* log = steps ? &steps->rewrites : nullptr;
  const auto tidy = [&](ir::Expr& e) {
    if (e) e = simplify(e, bounds, log);
  };
  step("check", [&] { check(mod); });  // throws for the user's mistakes; later steps must not
  step("simplify", [&] {
    for (ir::Expr* root : {&mod.score, &mod.mask, &mod.prob, &mod.sink}) tidy(*root);
  });
  step("derive", [&] {
    mod.dscore = derive(mod.score, ir::Input::S);
    mod.dprob = derive(mod.prob, ir::Input::P);
    if (mod.sink) mod.dsink = derive(mod.sink, std::nullopt);
    Simplify tidy_derived(bounds);  // not logged: these rewrites are not of the user's expressions
    for (Derivative* d : {&mod.dscore, &mod.dprob, &mod.dsink}) {
      if (d->by) d->by = tidy_derived(d->by);
      for (Scatter& s : d->captures) s.value = tidy_derived(s.value);
    }
  });
  step("fold", [&] { mod.fold = fold(mod.score, bounds); });
  for (const ir::Expr& read : copied_reads(mod.fold.core, mod, [](std::uint32_t) { return true; }))
    out.dense.push_back(read->bits);
  step("level", [&] { mod.levels = level(std::array{mod.score, mod.mask, mod.prob}); });
  out.digest = mod.digest();
  step("cover", [&] { out.cover = cover(mod.mask, mod.signature(), mod.score); });
  return out;
}

Steps::Step traced_step(const Mod& mod, std::chrono::nanoseconds took, bool keep_text) {
  return {"trace", keep_text ? mod.text() : "", took, nodes_of(mod)};
}

LoweredMod lower(const Attention& attention, Steps* steps) {
  const auto start = std::chrono::steady_clock::now();
  BoundMod traced = trace(attention);
  if (steps)
    steps->steps.push_back(traced_step(traced.mod, std::chrono::steady_clock::now() - start, steps->keep_text));
  return lower(std::move(traced), steps);
}

}  // namespace attune::compiler
