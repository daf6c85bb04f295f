// tests/codegen/kernels.test.cpp — every row of kernels.def compiles with mods of every kind, for every architecture
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>

#include "codegen/choose.h"
#include "compiler/lower.h"
#include "runtime/cuda/nvrtc.h"
#include "tests/catch.h"
#include "tests/numerics/masks.h"
#include "tests/sanitizers.h"

namespace attune::tests {
namespace {

using codegen::ForwardChoice, codegen::ForwardChoices, codegen::ForwardSpec;
using runtime::cuda::Binary;

/// A row of kernels.def on an architecture: the candidate of that number for such a call.
struct Row {
  ForwardSpec spec;
  std::size_t candidate = 0;
};

std::vector<Row> rows() {
  std::vector<Row> out;
  const auto sm90 = [&](int d, int dv) {
    const bool next = !out.empty() && out.back().spec.d == d && out.back().spec.dv == dv;
    out.push_back({{.arch = 90, .d = d, .dv = dv}, next ? out.back().candidate + 1 : 0});
  };
  const auto sm80 = [&](int bytes, int d) {
    const DType type = bytes == 4 ? DType::f32 : DType::bf16;
    for (const int arch : {80, 86, 90, 120})
      out.push_back({{.arch = arch, .dtype = type, .out = type, .d = d, .dv = d, .boxes = false, .exact = bytes == 4}});
  };
#define ATTUNE_SM90(d, dv, ...) sm90(d, dv);
#define ATTUNE_SM80(bytes, d, ...) sm80(bytes, d);
#include "codegen/kernels.def"
#undef ATTUNE_SM80
#undef ATTUNE_SM90
  return out;
}

struct Lowered {
  std::string name;
  compiler::Traced traced;
  compiler::Cover cover;

  explicit Lowered(const CorpusMod& mod) : name(mod.name), traced(compiler::lower(make(mod, 1).attention)) {
    cover = compiler::cover(traced.mod.mask, traced.mod.signature(), traced.mod.score);
  }
};

std::vector<CorpusMod> mods() {
  std::vector<CorpusMod> all = corpus();
  for (const MaskCase& mask : masks()) all.push_back(mask.mod);
  return all;
}

/// What is wrong with what was compiled, or empty.
std::string flaw(const Binary& binary) {
  if (binary.spilled > 0) return fmt::format("spills {} bytes", binary.spilled);
  return binary.warnings.empty() ? "" : binary.warnings[0];
}

/// Compiles a Mod for a row. A candidate may spill when another of its width does not, and is told; `number` makes the
/// details of the call.
void compile(const Lowered& lowered, Row row, std::size_t number) {
  const bool portable = !row.spec.boxes;
  if (number % 2 && row.spec.dtype == DType::bf16) row.spec.dtype = row.spec.out = DType::f16;
  row.spec.max = number % 5 == 0;
  row.spec.packed = portable && number % 3 == 0;
  if (portable && number % 4 == 0) row.spec.load = 0;
  const ForwardChoices all = choose(row.spec, codegen::forward_facts(lowered.traced.mod, lowered.cover, true));
  const std::size_t own = portable ? 1 : all.choices.size() - 1;
  if (own == 0) return;  // the fast kernel does not take this Mod
  REQUIRE(row.candidate < own);
  std::string told;
  for (std::size_t i = 0; i < own; ++i) {
    const codegen::ForwardPlan& plan = all.choices[(row.candidate + i) % own].plan;
    const Binary binary = runtime::cuda::compile(
        codegen::forward_source(lowered.traced.mod, lowered.cover, plan, row.spec.arch));
    const std::string wrong = flaw(binary);
    if (wrong.empty()) {
      if (!told.empty()) std::printf("%s", told.c_str());
      return;
    }
    told += fmt::format("{}: {} {} x {}, d {}, dv {}, {}, sm_{}{}: {}\n", lowered.name, plan.kernel, plan.m, plan.n,
                        plan.d, plan.dv, name_of(plan.dtype), row.spec.arch, plan.packed ? ", packed" : "", wrong);
  }
  FAIL_CHECK(told);
}

bool skipped() {
  if (sanitized) std::puts("[skip] NVIDIA's compiler is not ours to sanitize; the preset dev asks it");
  if (!sanitized && !runtime::cuda::nvrtc()) std::printf("[skip] %s\n", runtime::cuda::nvrtc().refusal.c_str());
  return sanitized || !runtime::cuda::nvrtc();
}

/// Each mod on one row, each row for some mods: of all combinations about one in fifty.
void rotate(std::size_t half) {
  if (skipped()) return;
  const std::vector<Row> all = rows();
  const std::vector<CorpusMod> everything = mods();
  REQUIRE(everything.size() >= all.size());
  for (std::size_t i = half; i < everything.size(); i += 2) compile(Lowered(everything[i]), all[i % all.size()], i);
}

}  // namespace

TEST_CASE("kernels compile unspilled, each mod on one of them: first half", "[cuda]") { rotate(0); }
TEST_CASE("kernels compile unspilled, each mod on one of them: last half", "[cuda]") { rotate(1); }

// Hours: test_codegen "[.matrix]". The environment variable ATTUNE_MATRIX holds the names of mods, with spaces between
// them, where not all are wanted.
TEST_CASE("every mod compiles unspilled on every row of kernels.def, for every architecture", "[.matrix]") {
  if (skipped()) return;
  const char* named = std::getenv("ATTUNE_MATRIX");
  const std::string wanted = named ? fmt::format(" {} ", named) : "";
  std::size_t number = 0;
  for (const CorpusMod& mod : mods()) {
    if (named && wanted.find(" " + mod.name + " ") == std::string::npos) continue;
    const Lowered lowered(mod);
    for (const Row& row : rows()) compile(lowered, row, number++);
    std::printf("%s: done\n", mod.name.c_str());
    std::fflush(stdout);
  }
  CHECK(number > 0);
}

}  // namespace attune::tests
