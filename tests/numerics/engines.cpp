// tests/numerics/engines.cpp — every engine of this build that this machine can run, and the mods it is given
#include "tests/numerics/engines.h"

#include "compiler/lower.h"
#include "runtime/cpu/engine.h"
#include "runtime/cpu/host.h"

namespace attune::tests {
namespace {

using runtime::cpu::Isa;

// Two threads: enough to meet a mistake, and few for a machine that runs other tests.
runtime::cpu::Means means(Isa isa) { return {.isa = isa, .executor = {.workers = 2}}; }

runtime::cpu::Compiled compiled(const Subject& subject) {
  return {subject.lowered, subject.removes ? &subject.cover : nullptr};
}

Engine engine(Isa isa) {
  return {.name = "cpu " + std::string(codegen::name_of(isa)),
          .forward =
              [isa](const Subject& subject, const Forward& call, const compiler::Problem& problem) {
                runtime::cpu::forward(compiled(subject), call, problem, means(isa));
              },
          .backward =
              [isa](const Subject& subject, const Backward& call, const compiler::Problem& problem) {
                runtime::cpu::backward(compiled(subject), call, problem, means(isa));
              }};
}

}  // namespace

Subject::Subject(const Attention& attention) : Subject(compiler::trace(attention)) { scale = attention.scale; }

Subject::Subject(compiler::Traced traced) : written(std::move(traced)), lowered(written) {
  lowered.mod = compiler::lower(std::move(lowered.mod));
  cover = compiler::cover(lowered.mod.mask, lowered.mod.signature(), lowered.mod.score);
  removes = !ir::is_literal(cover.mask, 1);
}

const std::vector<Engine>& engines() {
  static const std::vector<Engine> all = [] {
    std::vector<Engine> found;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx})
      if (runtime::cpu::supports(isa)) found.push_back(engine(isa));
    return found;
  }();
  return all;
}

}  // namespace attune::tests
