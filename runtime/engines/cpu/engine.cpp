// runtime/engines/cpu/engine.cpp — the instruction set that the CPU engine compiles for, and how many threads a call
// gets
#include "runtime/engines/cpu/engine.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <attune/error.h>

#include "runtime/engines/cpu/host.h"
#include "runtime/engines/layout.h"
#include "runtime/machine/options.h"

namespace attune::runtime::cpu {
namespace {

/// Multiplications of one worker. A call with less for each of two is slower on two threads, since waking one takes 30
/// to 100 us if the call comes between other work (two vCPUs of a Zen 4, f32).
constexpr double worth_waking = 1 << 20;

}  // namespace

Isa isa() {
  const std::optional<Isa> asked = options().cpu;
  if (!asked) return best_isa();
  if (!supports(*asked))
    throw Error("option-value", fmt::format("ATTUNE_CPU asks for {}", name_of(*asked)), {.name = "ATTUNE_CPU"},
                fmt::format("this machine supports at most {}", name_of(best_isa())),
                "unset ATTUNE_CPU, or set it to what the machine supports");
  return *asked;
}

double worthwhile_workers(double products) { return std::max(1.0, std::floor(products / worth_waking)); }

int usual_workers(const compiler::Problem& problem) {
  double pairs = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence seq = sequence(problem, b);
    pairs += static_cast<double>(seq.q_len) * static_cast<double>(seq.kv_len);
  }
  const double products = pairs * static_cast<double>(problem.q_heads) * static_cast<double>(problem.d + problem.dv);
  return static_cast<int>(std::min<double>(worthwhile_workers(products), options().threads));
}

}  // namespace attune::runtime::cpu
