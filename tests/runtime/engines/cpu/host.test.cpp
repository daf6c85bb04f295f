// tests/runtime/engines/cpu/host.test.cpp — the detected instruction sets are those that the compiler's own test finds
#include "runtime/engines/cpu/engine.h"

#include "tests/catch.h"

using namespace attune;
using codegen::Isa;
using runtime::cpu::supports;

TEST_CASE("the least instruction set is always there", "[host]") { CHECK(supports(Isa::portable)); }

#if defined(__x86_64__)
TEST_CASE("AVX2 and AVX-512 are found where the compiler's library finds them", "[host]") {
  __builtin_cpu_init();
  CHECK(supports(Isa::avx2) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")));
  CHECK(supports(Isa::avx512) == (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")));
}
#endif
