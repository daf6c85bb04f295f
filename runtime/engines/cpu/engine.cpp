// runtime/engines/cpu/engine.cpp — the instruction set that the CPU engine compiles for
#include "runtime/engines/cpu/engine.h"

#include <fmt/format.h>

#include <attune/error.h>

#include "runtime/engines/cpu/host.h"
#include "runtime/machine/options.h"

namespace attune::runtime::cpu {

Isa isa() {
  const std::optional<Isa> asked = options().cpu;
  if (!asked) return best_isa();
  if (!supports(*asked))
    throw Error("option-value", fmt::format("ATTUNE_CPU asks for {}", name_of(*asked)), {.name = "ATTUNE_CPU"},
                fmt::format("this machine supports at most {}", name_of(best_isa())),
                "unset ATTUNE_CPU, or set it to what the machine supports");
  return *asked;
}

}  // namespace attune::runtime::cpu
