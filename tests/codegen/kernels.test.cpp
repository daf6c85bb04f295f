// tests/codegen/kernels.test.cpp — every row of every kernel's table compiles with mods of every kind, for every
// architecture
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <set>

#include "codegen/choose/choose.h"
#include "codegen/source/skeleton.h"
#include "codegen/source/source.h"
#include "compiler/lower.h"
#include "runtime/engines/cuda/kernels/spliced.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/catch.h"
#include "tests/codegen/kernels/forward_reversed_sm90.h"
#include "tests/numerics/masks.h"
#include "tests/nvrtc.h"
#include "tests/turn.h"

namespace attune::tests {
namespace {

using codegen::KernelChoice, codegen::KernelChoices, codegen::KernelSpec;
using runtime::cuda::Binary;

/// A row of a kernel's table, on one architecture. A fast kernel has a row for each of its tiles. The kernel that takes
/// any call has a row for each width, and its further tiles are candidates after the first.
struct Row {
  KernelSpec spec;
  std::string variant;  ///< of the fast kernel
  /// Bytes it may spill: for the widest rows of the portable kernel, no further tile spills less; MLA has one
  /// tile, whose results take 128 registers a thread.
  int spills = 0;
  bool everywhere = false;  ///< one of three rows in turn, which have an architecture each
  /// Takes the mods of examples alone: its kernel leaves mods few registers, and no other follows it.
  bool golden = false;

  bool portable() const { return !spec.strides.tma; }
};

/// Every tile of a fast kernel, for all kinds of calls.
void add_fast(std::vector<Row>& out, const KernelSpec& spec) {
  std::set<codegen::Variant> all;
  for (const auto cover : {codegen::CoverKind::full, codegen::CoverKind::causal, codegen::CoverKind::listed})
    for (const auto mod : {codegen::ModKind::scaled, codegen::ModKind::heavy})
      for (const auto length : codegen::all_lengths)
        for (const KernelChoice& c : choose(spec, {}, {cover, mod, length}).choices)
          if (!c.plan.kernel->takes_any && all.insert(codegen::variant_of(c.plan)).second)
            out.push_back({spec, codegen::variant_of(c.plan).text()});
}

std::vector<Row> rows() {
  std::vector<Row> out;
  for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {192, 128}, {192, 192}, {256, 256}})
    add_fast(out, {.arch = 90, .d = d, .dv = dv});
  for (const auto& [bytes, d] :
       {std::pair{2, 64}, {2, 96}, {2, 128}, {2, 192}, {2, 256}, {4, 64}, {4, 128}, {4, 256}}) {
    const DType type = bytes == 4 ? DType::f32 : DType::bf16;
    const int width = bytes * d;  // of a row
    for (const int arch : {80, 90, 120})
      out.push_back({.spec = {.arch = arch,
                              .dtype = type,
                              .out = type,
                              .d = d,
                              .dv = d,
                              .strides = {.tma = false},
                              .exact = bytes == 4},
                     .variant = {},
                     .spills = width <= 256 ? 0 : 48,
                     .everywhere = true});
  }
  for (const auto& [d, dv] : {std::pair{64, 64}, {128, 128}, {192, 128}, {256, 256}})
    for (const int arch : {80, 90, 120})
      out.push_back({.spec = {.arch = arch, .d = d, .dv = dv, .sharing = {.rows = codegen::QueryRows::decode}},
                     .variant = "decode_sm80",
                     .everywhere = true});
  for (const auto& [d, dv] : {std::pair{48, 48}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}})
    for (const int arch : {80, 90, 120})
      out.push_back({.spec = {.arch = arch,
                              .d = d,
                              .dv = dv,
                              .cache = {.fp8 = true},
                              .sharing = {.rows = codegen::QueryRows::decode}},
                     .variant = "decode_sm80",
                     .everywhere = true});
  const auto mla = [](int row_blocks) {
    const KernelSpec spec{.d = codegen::mla_d,
                          .dv = codegen::mla_dv,
                          .cache = {.per_entry = true, .mla = true},
                          .sharing = {.row_blocks = row_blocks}};
    return Row{.spec = spec, .variant = "mla_sm90", .spills = 48, .golden = true};
  };
  out.push_back(mla(1));
  out.push_back(mla(2));
  const std::size_t others = out.size();
  for (const auto& [d, dv] : {std::pair{32, 32}, {64, 64}, {96, 64}, {128, 128}})
    add_fast(out, {.arch = 90, .dtype = DType::e4m3, .d = d, .dv = dv});
  const std::size_t of_f32 = out.size();
  for (const auto& [d, dv] : {std::pair{64, 64}, {96, 64}, {128, 128}})
    for (const bool exact : {false, true})
      add_fast(out, {.arch = 90, .dtype = DType::f32, .out = DType::f32, .d = d, .dv = dv, .exact = exact});
  // As many bytes as its descriptor allows: a card measured that they cost less than a narrower tile.
  for (std::size_t i = of_f32; i < out.size(); ++i) out[i].spills = out[i].spec.exact ? 256 : 48;
  for (std::size_t i = others; i < out.size(); ++i) out[i].golden = true;
  // A row's place decides its mod and call. Tiles that were added later come last, so that the others keep theirs.
  std::stable_partition(out.begin(), out.end(), [](const Row& row) {
    return row.spec.dtype != DType::bf16 || row.spec.d != 64 || !row.variant.starts_with("forward_sm90:m=192,n=128") ||
           row.variant.find("items=2") == std::string::npos;
  });
  out.push_back(mla(4));
  return out;
}

struct Lowered {
  std::string name;
  compiler::LoweredMod lowered;

  explicit Lowered(const CorpusMod& mod) : name(mod.name), lowered(compiler::lower(make(mod, 1).attention)) {}
};

std::vector<CorpusMod> mods() {
  std::vector<CorpusMod> all = corpus();
  for (const MaskCase& mask : masks()) all.push_back(mask.mod);
  return all;
}

/// What the assembler's log says of the kernel, where that is not what its machine code says.
std::string contradiction(const Binary& binary) {
  const std::size_t at = binary.log.find(fmt::format("Function properties for {}\n", binary.symbol));
  if (at == std::string::npos) return "the log does not have the kernel";
  const std::string_view rest = std::string_view(binary.log).substr(at);
  const std::string registers = fmt::format("Used {} registers,", binary.registers),
                    spilled = fmt::format(" stack frame, {} bytes spill stores,", binary.spilled);
  if (rest.find(registers) > rest.find("Used ")) return "the log does not say: " + registers;
  return rest.find(spilled) > rest.find(" stack frame,") ? "the log does not say:" + spilled : "";
}

/// What is wrong with the compiled kernel, or empty.
std::string flaw(const Binary& binary, int spills) {
  CHECK(contradiction(binary) == "");
  if (binary.spilled > spills) return fmt::format("spills {} bytes", binary.spilled);
  return binary.warnings.empty() ? "" : binary.warnings[0];
}

/// Half of the kernels that have skeletons, spliced. One that cannot be, or would spill, is compiled whole again.
void splice(const codegen::GpuParts& parts, const codegen::KernelPlan& plan, const Binary& whole, std::size_t number) {
  if (number % 4 > 1 || !codegen::why_not_spliced(parts, plan).empty()) return;
  const Binary spliced = runtime::cuda::compile_spliced(codegen::kernel_source(parts, plan), parts, plan);
  CAPTURE(spliced.made);
  CHECK(!spliced.made.starts_with("NVRTC refuses"));
  CHECK(spliced.symbol == whole.symbol);
  CHECK(spliced.registers <= whole.registers);
  CHECK(spliced.spilled <= whole.spilled);
  CHECK(spliced.warnings.size() <= whole.warnings.size());
}

/// Compiles a Mod for a row. A fast candidate that spills is reported, and is a failure only if every other candidate
/// of its width spills too. `number` decides the details of the call.
void compile(const Lowered& lowered, Row row, std::size_t number) {
  if (number % 2 && row.spec.dtype == DType::bf16) row.spec.dtype = row.spec.out = DType::f16;
  if (number % 2 && row.spec.dtype == DType::e4m3) row.spec.out = DType::f16;
  row.spec.max = number % 5 == 0;
  row.spec.packed = number % 3 == 0;
  codegen::KvCache& cache = row.spec.cache;
  const bool mla = cache.mla, decode = row.spec.sharing.decode();
  row.spec.sharing.heads = 1 << number % (mla ? 7 : decode ? 5 : 4);
  if (row.portable()) cache.per_entry = number % 3 == 1;
  if ((decode || mla || cache.per_entry) && number % 2) cache.per_entry = true, cache.page_rows = 64;
  row.spec.fixed_split = decode && number % 4 < 2;
  row.spec.before = number % 7 == 2 || (decode && number % 4 == 1);
  if (row.portable() && number % 4 == 0) row.spec.strides.load = 0;
  const codegen::GpuParts parts = codegen::forward_parts(lowered.lowered, row.spec);
  if ((row.spec.dtype == DType::e4m3 || mla) && parts.facts.degree != 1) return;  // refused
  row.spec.before = row.spec.before && parts.facts.degree == 1;                   // likewise
  std::vector<KernelChoice> candidates = choose(row.spec, parts.facts).choices;
  if (!row.portable() && !mla) {
    // The fast kernel does not take every Mod; the portable one does.
    const auto is_portable = [](const KernelChoice& c) { return c.plan.kernel->takes_any; };
    if (is_portable(candidates.front())) return;
    const codegen::Preference first{codegen::variant(row.variant), false, ""};
    candidates = choose(row.spec, parts.facts, {}, &first).choices;
    std::erase_if(candidates, is_portable);
  }
  std::string told;
  for (const KernelChoice& candidate : candidates) {
    const codegen::KernelPlan& plan = candidate.plan;
    const Binary binary = runtime::cuda::compile(codegen::kernel_source(parts, plan));
    const std::string wrong = flaw(binary, row.spills);
    if (binary.spilled || !wrong.empty())
      told += fmt::format("{}: {} {} x {}, d {}, dv {}, {}, sm_{}{}: {}\n", lowered.name, plan.kernel->name,
                          plan.tile.m, plan.tile.n, plan.tile.d, plan.tile.dv, name_of(plan.spec.dtype), row.spec.arch,
                          plan.spec.packed ? ", packed" : "",
                          wrong.empty() ? fmt::format("{} bytes", binary.spilled) : wrong);
    if (wrong.empty()) {
      std::printf("%s", told.c_str());
      return splice(parts, plan, binary, number);
    }
  }
  // Accumulators of 256 columns leave few registers: some mods get the portable kernel.
  if (!row.portable() && row.spec.d == 256)
    std::printf("%s", told.c_str());
  else
    FAIL_CHECK(told);
}

/// Mods that examples and benchmarks have.
bool is_golden(const CorpusMod& mod) {
  constexpr std::array names{"plain", "causal", "alibi", "softcap", "documents", "relative_table"};
  return std::ranges::find(names, mod.name) != names.end();
}

/// Half of this turn's rows, each with another mod: one architecture of a ninth of the rows that three have, and one
/// row in 25 of those that Hopper alone has. kernel_source.test.cpp compiles every mod with a small kernel.
void rotate(std::size_t half) {
  if (skips_compiling()) return;
  const std::vector<Row> all = rows();
  const std::vector<CorpusMod> everything = mods();
  std::vector<CorpusMod> golden;
  std::ranges::copy_if(everything, std::back_inserter(golden), is_golden);
  std::size_t places = 0, taken = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Three architectures follow one another; neighbours take different ones.
    const std::size_t place = places;
    places += all[i].everywhere;
    if (all[i].everywhere ? !in_turn(place + place / 3, 27) : !in_turn(i, 25)) continue;
    const std::vector<CorpusMod>& from = all[i].golden ? golden : everything;
    if (taken++ % 2 == half) compile(Lowered(from[i * 37 % from.size()]), all[i], i);
  }
}

/// Compiles a backward kernel of a Mod whose captured tensors all want gradients, or none. A candidate may spill where
/// another of its width does not. `number` decides whether it is spliced, too.
void compile_backward(const Lowered& lowered, codegen::Way way, const KernelSpec& spec, int spills, bool grads,
                      std::size_t number) {
  codegen::Wanted wanted(lowered.lowered.mod.captures.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = grads && compiler::type_of(lowered.lowered.mod.captures[i].dtype) == ir::Type::F32;
  const codegen::GpuParts parts = codegen::gpu_parts(lowered.lowered, true, &wanted, way == codegen::Way::keys);
  const codegen::Kernels all = codegen::kernels(way);
  if (std::ranges::all_of(all, [&](const auto* one) { return !one->why_not(spec, parts.facts).empty(); })) return;
  std::string told;
  for (const KernelChoice& candidate : choose(spec, parts.facts, {}, nullptr, all).choices) {
    const Binary binary = runtime::cuda::compile(codegen::kernel_source(parts, candidate.plan));
    const std::string wrong = flaw(binary, std::max(spills, candidate.plan.kernel->spills_well));
    if (wrong.empty()) {
      std::printf("%s", told.c_str());
      return splice(parts, candidate.plan, binary, number);
    }
    told += fmt::format("{}: {} d {}, {}, sm_{}: {}\n", lowered.name, codegen::variant_of(candidate.plan).text(),
                        spec.d, name_of(spec.dtype), spec.arch, wrong);
  }
  FAIL_CHECK(told);
}

/// Half of the backward's rows in this turn, one in 25, each with a mod and an architecture of its own.
void rotate_backward(std::size_t half) {
  if (skips_compiling()) return;
  const std::vector<CorpusMod> everything = mods();
  std::size_t number = 0;
  const auto is_taken = [&](std::size_t i) { return i % 2 == half && in_turn(i / 2, 25); };
  for (const codegen::Way way : {codegen::Way::queries, codegen::Way::keys})
    for (const auto& [type, d] : {std::pair{DType::bf16, 64},
                                  {DType::f16, 96},
                                  {DType::bf16, 128},
                                  {DType::f16, 192},
                                  {DType::bf16, 256},
                                  {DType::f32, 64},
                                  {DType::f32, 128},
                                  {DType::f32, 256}})
      if (const std::size_t i = number++; is_taken(i))
        compile_backward(Lowered(everything[i * 29 % everything.size()]), way,
                         {.arch = std::array{80, 90, 120}[i % 3],
                          .dtype = type,
                          .out = type,
                          .d = d,
                          .dv = d,
                          .packed = i % 4 == 0,
                          .strides = {.tma = false, .load = i % 5 ? 16 : 0},
                          .exact = type == DType::f32},
                         64, true, i);
  const auto is_walked = [](const CorpusMod& mod) {
    return mod.name == "plain" || mod.name == "causal" || mod.name == "alibi" || mod.name == "softcap";
  };
  for (const auto& mod : everything)
    for (const int d : {64, 128})
      for (const bool packed : {false, true})
        if ((is_walked(mod) || mod.name == "documents") && is_taken(number++))
          compile_backward(Lowered(mod), codegen::Way::backward, {.d = d, .dv = d, .packed = packed}, 0, false, number);
        else if (mod.name == "relative_table" && is_taken(number++))
          compile_backward(Lowered(mod), codegen::Way::backward, {.d = d, .dv = d, .packed = packed}, 0, true, number);
  for (const auto& mod : everything)
    for (const auto& [d, dv] : {std::pair{192, 128}, {256, 256}})
      for (const codegen::Way way : {codegen::Way::queries, codegen::Way::keys})
        if ((is_walked(mod) || mod.name == "dropout") && is_taken(number++))
          compile_backward(Lowered(mod), way, {.d = d, .dv = dv}, 0, false, number);
}

}  // namespace

TEST_CASE("the kernels that append, clear and combine compile without spills for every architecture", "[cuda]") {
  if (skips_compiling()) return;
  for (const int arch : {80, 86, 90, 100, 120})
    for (const char* kernel : {"append", "clear", "copy_rows", "add_parts", "combine_ranks", "combine_parts"})
      CHECK(flaw(runtime::cuda::compile(codegen::plain_source(kernel, arch)), 0) == "");
}

TEST_CASE("the kernel that transposes values compiles without spills for every tile", "[cuda]") {
  if (skips_compiling()) return;
  for (const auto& [n, dv] : {std::pair{128, 128}, {32, 128}, {96, 96}, {160, 96}, {224, 64}, {256, 32}})
    for (const bool packed : {false, true}) {
      const codegen::KernelPlan plan{.spec = {.dtype = DType::e4m3, .packed = packed}, .tile = {.n = n, .dv = dv}};
      CHECK(flaw(runtime::cuda::compile(codegen::transpose_source(plan)), 0) == "");
    }
}

TEST_CASE("the kernel that splits keys and values compiles without spills for every tile", "[cuda]") {
  if (skips_compiling()) return;
  for (const auto& [n, d, dv] : {std::tuple{64, 128, 128}, {32, 96, 32}, {128, 32, 64}})
    for (const bool packed : {false, true}) {
      const codegen::KernelPlan plan{.spec = {.dtype = DType::f32, .packed = packed},
                                     .tile = {.n = n, .d = d, .dv = dv, .parts = packed ? 1 : 2}};
      CHECK(flaw(runtime::cuda::compile(codegen::split_source(plan)), 0) == "");
    }
}

TEST_CASE("Hopper's forward with a key source that tests add has a tile that spills no more than without", "[cuda]") {
  if (skips_compiling()) return;
  // Lists of tiles take registers of the producer warp.
  constexpr std::array names{"plain", "causal", "alibi", "softcap", "dropout"};
  std::size_t nth = 0;
  for (const CorpusMod& mod : corpus()) {
    if (std::ranges::find(names, mod.name) == names.end() || !in_turn(nth++, 5)) continue;
    const Lowered lowered(mod);
    const KernelSpec spec{.arch = 90};
    const codegen::GpuParts parts = codegen::forward_parts(lowered.lowered, spec);
    INFO(mod.name);
    // Of dropout, the first tile leaves warps that load so few registers that this source spills some.
    const auto is_whole = [&](const KernelChoice& c) {
      const Binary own = runtime::cuda::compile(codegen::kernel_source(parts, c.plan)),
                   binary = runtime::cuda::compile(codegen::kernel_source(parts, reversed(c).plan));
      CHECK(binary.symbol.find("forward_reversed_sm90") != std::string::npos);
      return flaw(binary, own.spilled).empty();
    };
    CHECK(std::ranges::any_of(choose(spec, parts.facts).choices, is_whole));
  }
}

TEST_CASE("Hopper's forward whose blocks share keys has a tile that does not spill", "[cuda]") {
  if (skips_compiling()) return;
  constexpr std::array names{"plain", "causal", "alibi", "softcap", "documents", "dropout"};
  std::size_t nth = 0;
  for (const CorpusMod& mod : corpus()) {
    if (std::ranges::find(names, mod.name) == names.end()) continue;
    for (const int d : {64, 128, 256}) {
      if (!in_turn(nth++, 9)) continue;
      const Lowered lowered(mod);
      const KernelSpec spec{.arch = 90,
                            .d = d,
                            .dv = d,
                            .packed = d == 128,
                            .cache = {.per_entry = true},
                            .sharing = {.heads = 8, .few_tiles = true}};
      const codegen::GpuParts parts = codegen::forward_parts(lowered.lowered, spec);
      const auto is_whole = [&](const KernelChoice& c) {
        return c.plan.tile.in_parts && flaw(runtime::cuda::compile(codegen::kernel_source(parts, c.plan)), 0).empty();
      };
      INFO(mod.name << " " << d);
      CHECK(std::ranges::any_of(choose(spec, parts.facts).choices, is_whole));
    }
  }
}

TEST_CASE("sums of reads per pair in packed sequences do not spill at D=192 on Hopper", "[cuda]") {
  if (skips_compiling()) return;
  for (const CorpusMod& mod : corpus())
    for (const bool max : {false, true})
      if (mod.name == "dot_product" && in_turn(max, 2)) {
        const KernelSpec spec{.arch = 90, .d = 192, .dv = 192, .max = max, .packed = true};
        const Lowered lowered(mod);
        const codegen::GpuParts parts = codegen::forward_parts(lowered.lowered, spec);
        const auto is_whole = [&](const KernelChoice& c) {
          return std::string(c.plan.kernel->name) == "forward_sm90" &&
                 flaw(runtime::cuda::compile(codegen::kernel_source(parts, c.plan)), 0).empty();
        };
        CHECK(std::ranges::any_of(choose(spec, parts.facts).choices, is_whole));
      }
}

TEST_CASE("every row of a backward kernel's table compiles with some mod: first half", "[cuda]") { rotate_backward(0); }
TEST_CASE("every row of a backward kernel's table compiles with some mod: last half", "[cuda]") { rotate_backward(1); }

TEST_CASE("every row of a kernel's table compiles with some mod: first half", "[cuda]") { rotate(0); }
TEST_CASE("every row of a kernel's table compiles with some mod: last half", "[cuda]") { rotate(1); }

// Takes hours: test_codegen "[.matrix]". The environment variable ATTUNE_MATRIX may name the mods to compile,
// with spaces between them.
TEST_CASE("every row of a kernel's table compiles with every mod, for every architecture", "[.matrix]") {
  if (skips_compiling()) return;
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
