// runtime/engines/cpu/peak.cpp — measures the multiply-adds that one core can do
#include "runtime/engines/cpu/peak.h"

#include <chrono>
#include <memory>
#include <utility>

#include "codegen/llvm.h"
#include "runtime/engines/cpu/enter_llvm.h"
#include "runtime/engines/cpu/operands.h"
#include "runtime/machine/cache/single.h"
#include "runtime/machine/mutex.h"

namespace attune::runtime::cpu {

double peak_gflops(DType type) {
  struct Loop {
    explicit Loop(codegen::Peak peak) : code(peak.object), flop(peak.flop), run(code.find<codegen::PeakFn>("peak")) {}
    Loaded code;
    double flop;
    codegen::PeakFn* run;
  };
  const Isa on = isa();
  const Unit unit = unit_for(on, type);
  struct Hash {
    std::size_t operator()(const std::pair<Isa, Unit>& key) const {
      return 2 * static_cast<std::size_t>(key.first) + static_cast<std::size_t>(key.second);
    }
  };
  static constinit Once<Single<std::pair<Isa, Unit>, Loop, Hash>> loops;
  const auto loop = loops.get().get({on, unit}, [&] {
    codegen::Peak peak;
    enter_llvm(LlvmWork::compile, [&] { peak = codegen::peak_object(on, unit); });
    return std::make_shared<const Loop>(std::move(peak));
  });

  alignas(64) float memory[64] = {};
  constexpr std::int64_t rounds = 20'000;
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    loop->run(rounds, memory);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(rounds) * loop->flop / seconds / 1e9);
  }
  return best;
}

}  // namespace attune::runtime::cpu
