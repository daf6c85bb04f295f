// runtime/engines/cpu/engine.cpp — the instruction set that the CPU engine compiles for, how many threads a call gets,
// and what one core can do
#include "runtime/engines/cpu/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/llvm.h"
#include "runtime/engines/cpu/operands.h"
#include "runtime/engines/cpu/orc.h"
#include "runtime/engines/layout.h"
#include "runtime/machine/cache/single.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace attune::runtime::cpu {
namespace {

using codegen::Isa;

#if defined(__x86_64__)

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  ///< zeros if the processor does not know the leaf

  Cpuid(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

constexpr bool all(std::uint64_t of, std::uint64_t bits) { return (of & bits) == bits; }
constexpr std::uint64_t bit(unsigned n) { return std::uint64_t{1} << n; }

/// The register state that the operating system saves.
std::uint64_t saved_state() {
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

/// Linux grants the tiles' 8 KiB of state only to processes that ask.
bool tiles_granted() {
#if defined(__linux__)
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

Isa detect() {
  const Cpuid one(1, 0), seven(7, 0), seven_one(7, 1), extended(0x80000001, 0);
  constexpr auto osxsave = bit(27);
  if (!all(one.ecx, osxsave)) return Isa::portable;
  const std::uint64_t state = saved_state();

  // x86-64-v3, the target that LLVM gets: FMA, SSE3 to SSE4.2, CX16, MOVBE, POPCNT, AVX, F16C; BMI1, AVX2, BMI2; LAHF,
  // LZCNT.
  constexpr auto v3_one = bit(0) | bit(9) | bit(12) | bit(13) | bit(19) | bit(20) | bit(22) | bit(23) | bit(28) |
                          bit(29);
  constexpr auto v3_seven = bit(3) | bit(5) | bit(8), v3_extended = bit(0) | bit(5), avx_state = bit(1) | bit(2);
  if (!all(one.ecx, v3_one) || !all(seven.ebx, v3_seven) || !all(extended.ecx, v3_extended) || !all(state, avx_state))
    return Isa::portable;

  // x86-64-v4: F, DQ, CD, BW, VL.
  constexpr auto v4_seven = bit(16) | bit(17) | bit(28) | bit(30) | bit(31), avx512_state = bit(5) | bit(6) | bit(7);
  if (!all(seven.ebx, v4_seven) || !all(state, avx512_state)) return Isa::avx2;
  if (!all(seven_one.eax, bit(5))) return Isa::avx512;

  // AMX tiles, and bf16 products on them.
  constexpr auto amx_seven = bit(22) | bit(24), tile_state = bit(17) | bit(18);
  if (!all(seven.edx, amx_seven) || !all(state, tile_state) || !tiles_granted()) return Isa::avx512bf16;
  return Isa::amx;
}

#else

Isa detect() { return Isa::portable; }

#endif

}  // namespace

Isa best_isa() {
  static constinit Once<const Isa> best;
  return best.get(&detect);
}

bool supports(Isa isa) { return isa <= best_isa(); }

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
