// runtime/engines/cuda/kernels/consider.cpp — the candidate kernels of a call, compiled in turn until one has no flaw
#include "runtime/engines/cuda/kernels/consider.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cuda/headers.h"
#include "runtime/engines/cuda/kernels/spliced.h"
#include "runtime/engines/dump.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/waits.h"
#include "runtime/platform/nvidia/nvrtc.h"
#include "runtime/platform/platform.h"

namespace attune::runtime::cuda {
namespace {

std::atomic<std::size_t> compiled_so_far{0};

/// Bytes of registers that a fast kernel may spill and still be better than the kernel that supports any call.
constexpr int few_spilled = 128;

std::string flaw_of(const Binary& binary) {
  if (binary.spilled > 0) return fmt::format("spills {} bytes of registers", binary.spilled);
  if (!binary.warnings.empty()) return binary.warnings[0];
  return {};
}

/// The candidate that spills least, if its only flaw is that it spills at most `most` bytes.
std::optional<std::size_t> least_spilling(std::span<const Candidate> all, int most) {
  std::optional<std::size_t> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].binary) continue;
    const Binary& binary = *all[i].binary;
    if (binary.warnings.empty() && binary.spilled <= (out ? all[*out].binary->spilled - 1 : most)) out = i;
  }
  return out;
}

Binary read_binary(const CacheEntry& entry) {
  Binary out;
  out.cubin = entry.bytes;
  for (const auto& [name, value] : entry.facts) {
    if (name == "symbol") out.symbol = value;
    if (name == "registers") out.registers = std::atoi(value.c_str());
    if (name == "spilled") out.spilled = std::atoi(value.c_str());
    if (name == "warning") out.warnings.push_back(value);
    if (name == "made") out.made = value;
  }
  return out;
}

/// The binary of the source from memory, a bundle or the disk; null if there is none.
std::shared_ptr<const Binary> there(const codegen::Source& source) {
  Objects::Kept kept = objects().find(asked(source));
  if (!kept && platform().splices) kept = objects().find(asked_for_spliced(source));
  return kept ? std::make_shared<const Binary>(read_binary(*kept)) : nullptr;
}

/// A bundle's facts about a source that was compiled for the bundle and rejected: it need not be compiled again.
std::shared_ptr<const Binary> bundled_facts(const codegen::Source& source) {
  const Objects::Kept kept = objects().facts(asked(source).content);
  return kept ? std::make_shared<const Binary>(read_binary(*kept)) : nullptr;
}

bool will_do(const Candidate& one) {
  return one.flaw.empty() || least_spilling(std::span(&one, 1), one.choice.plan.kernel->spills_well);
}

/// The index of the chosen candidate; `whole` is the first one without a flaw. The kernel that supports any call is
/// slow: a fast kernel is better even if it spills a little.
std::size_t best(std::span<const Candidate> all, std::optional<std::size_t> whole) {
  const auto slow = std::ranges::find_if(all, [](const Candidate& c) { return c.choice.plan.kernel->takes_any; });
  const auto fast = static_cast<std::size_t>(slow - all.begin());
  if (whole && *whole < fast) return *whole;
  if (const auto least = least_spilling(all.first(fast), few_spilled)) return *least;
  if (whole) return *whole;
  constexpr int any = std::numeric_limits<int>::max();
  if (const auto least = least_spilling(all.subspan(fast), any)) return fast + *least;
  // With compiling off, the first candidate that is available.
  if (const auto least = least_spilling(all, any)) return *least;
  const auto first = std::ranges::find_if(all, [](const Candidate& one) { return one.binary != nullptr; });
  return first == all.end() ? 0 : static_cast<std::size_t>(first - all.begin());
}

std::string text_and_options(const codegen::Source& source) {
  return fmt::format("{} {}", source.text, fmt::join(source.options, " "));
}

DumpOf dump_of(const KernelOf& of, std::string dump) {
  return {.mod = of.mod, .target = target_name(of.arch), .kernel = of.kernel, .all = std::move(dump)};
}

constexpr const char* source_name = "05-source.cu";

void require_compiler() {
  const Platform& on = platform();
  if (!on.compiler().empty()) return;
  if (&on != &nvidia())
    throw Error("no-compiler", "there is no C++ compiler to build emulated kernels with", {}, on.refusal(),
                "install g++ or clang++");
  throw Error("no-compiler", "NVRTC, which compiles GPU kernels, was not found", {}, on.refusal(),
              "install it: libnvrtc of CUDA 12 or 13; or load a bundle that has the kernel, see docs/offline.md");
}

std::string choice_file(const Considered& all) {
  std::string out;
  for (const std::string& line : all.story) out += line + "\n";
  for (std::size_t i = 0; i < all.candidates.size(); ++i) {
    const Candidate& c = all.candidates[i];
    out += fmt::format("{:<7} {}, {} threads, {} bytes of shared memory", i == all.chosen ? "chosen" : "",
                       codegen::variant_of(c.choice.plan).text(), c.choice.threads, c.choice.shared_bytes);
    if (c.binary) out += fmt::format(", {} registers, {} bytes spilled", c.binary->registers, c.binary->spilled);
    out += fmt::format("{}\n", c.flaw.empty() ? "" : ": " + c.flaw);
  }
  return out;
}

/// Compiles once more, because caches keep neither PTX nor the log.
void dump_source(const KernelOf& of, const KernelSource& written, std::string choice) {
  dump(dump_of(of, written.dump), [&] {
    Binary binary = platform().compile(written.source, Ptx::yes);
    return std::vector<DumpFile>{
        {"04-choice.txt", std::move(choice)},
        {source_name, fmt::format("{}", written.source.text)},
        {"06-kernel.ptx", std::move(binary.ptx)},
        {"07-kernel.cubin", std::move(binary.cubin)},
        {"08-nvrtc.log", fmt::format("{}\n{}\n", fmt::join(written.source.options, " "), binary.log)}};
  });
}

}  // namespace

Asked asked(const codegen::Source& source) {
  std::string content = fmt::format("{} 2\n{}\n{}\n{}\n{}{}", platform().kind, fmt::join(source.options, " "),
                                    source.symbol, codegen::headers_digest(), platform().further(), source.text);
  for (const codegen::Header& own : source.headers) content += fmt::format("\n{}\n{}", own.name, own.text);
  return {.content = std::move(content), .compiler = platform().compiler, .name = source.name};
}

Asked asked_for_spliced(const codegen::Source& source) {
  Asked what = asked(source);
  what.content += "\nspliced";
  return what;
}

CacheEntry entry_of(const Binary& binary, const codegen::Source& source) {
  CacheEntry out{{{"kind", platform().kind},
                  {"kernel", source.name},
                  {"options", fmt::format("{}", fmt::join(source.options, " "))},
                  {"symbol", binary.symbol},
                  {"registers", std::to_string(binary.registers)},
                  {"spilled", std::to_string(binary.spilled)}},
                 binary.cubin};
  out.facts.insert(out.facts.begin() + 2, source.facts.begin(), source.facts.end());
  for (const std::string& warning : binary.warnings) out.facts.emplace_back("warning", warning);
  if (!binary.made.empty()) out.facts.emplace_back("made", binary.made);
  return out;
}

std::shared_ptr<const Binary> binary_of(const codegen::Source& source, const KernelOf& of,
                                        const std::function<Binary()>& spliced) {
  const Clock clock;
  Origin origin;
  const Asked what = asked(source);
  std::vector<watch::Built::Phase> phases;
  Asked under = spliced && !objects().find(what) ? asked_for_spliced(source) : what;
  under.purpose = of.purpose;
  const Objects::Kept kept = objects().get(
      under,
      [&] {
        require_compiler();
        ++compiled_so_far;
        const Binary made = spliced ? spliced() : platform().compile(source, Ptx::no);
        phases = made.phases;
        return entry_of(made, source);
      },
      &origin);
  const auto binary = std::make_shared<Binary>(read_binary(*kept));
  binary->phases = std::move(phases);
  record_built({of.mod, of.kernel, target_name(of.arch)}, origin, what, clock.seconds(),
               {binary->cubin.size(), binary->registers, binary->spilled, of.shared_bytes, flaw_of(*binary),
                binary->phases, binary->made == "spliced" ? of.spliced_is : of.whole_is});
  return binary;
}

std::string target_name(int arch) { return fmt::format("sm_{}{}", arch, arch == 90 ? "a" : ""); }

std::size_t compiled_kernels() { return compiled_so_far; }

KernelSource kernel_source_of(const codegen::GpuParts& parts, const codegen::KernelPlan& plan) {
  const bool lined = options().lineinfo, dumped = dumps();
  // The folder of a dump depends on the source without its line directives, since the directives contain the folder.
  KernelSource out;
  if (dumped || !lined) out.source = codegen::kernel_source(parts, plan);
  if (dumped) out.dump = text_and_options(out.source);
  if (!lined) return out;
  std::string path = fmt::format("{}.cu", plan.kernel->name);
  if (dumped) {
    const KernelOf of{&parts.mod(), codegen::variant_of(plan).text(), plan.spec.arch};
    path = std::filesystem::absolute(dump_folder(dump_of(of, out.dump)) / source_name).string();
  }
  out.source = codegen::kernel_source(parts, plan, path);
  return out;
}

codegen::Source companion_source_of(const codegen::Companion& companion, const codegen::GpuParts& parts,
                                    const codegen::KernelPlan& plan) {
  codegen::Source source = companion.source_of(parts, plan);
  if (companion.writes_lists() && options().lineinfo) source.options.emplace_back(codegen::line_option);
  return source;
}

namespace {

KernelOf kernel_of(const codegen::GpuParts& parts, const codegen::KernelChoice& choice, int arch,
                   const Purpose* purpose = nullptr) {
  return {&parts.mod(), codegen::variant_of(choice.plan).text(), arch, choice.shared_bytes, purpose};
}

CompiledFor compiled_for(Compiles what) {
  switch (what) {
    case Compiles::chosen:
    case Compiles::all: return CompiledFor::bundle;
    case Compiles::with_companions:
    case Compiles::last_tier: return CompiledFor::call;
    case Compiles::first_tier: return CompiledFor::first_tier;
  }
  return CompiledFor::bundle;
}

std::shared_ptr<const Binary> binary_of_candidate(const codegen::GpuParts& parts, const Candidate& one,
                                                  const Purpose* purpose, Compiles what) {
  const codegen::KernelPlan& plan = one.choice.plan;
  const codegen::Source& source = one.written->source;
  const Compiling kernel(Piece::kernel);
  KernelOf of = kernel_of(parts, one.choice, plan.spec.arch, purpose);
  const Splicing how = splicing_of(parts, plan, compiled_for(what));
  if (what == Compiles::first_tier && how != splicing_of(parts, plan, CompiledFor::call)) of.spliced_is = "first";
  if (what == Compiles::last_tier) of.whole_is = "last";
  if (how == Splicing::never) return binary_of(source, of);
  return binary_of(source, of, [&] { return compile_spliced(source, parts, plan, how); });
}

/// Some companions take NVRTC a quarter of the kernel's time.
std::shared_ptr<const Binary> compiled_with_companions(const codegen::GpuParts& parts, const Candidate& one,
                                                       const Purpose* purpose, Compiles what) {
  const codegen::KernelPlan& plan = one.choice.plan;
  const std::vector<const codegen::Companion*> companions = codegen::companions_of(parts, plan);
  std::shared_ptr<const Binary> out;
  at_once(companions.size() + 1, [&](std::size_t i) {
    if (i == 0) {
      out = binary_of_candidate(parts, one, purpose, what);
    } else {
      const codegen::Source source = companion_source_of(*companions[i - 1], parts, plan);
      binary_of(source, {.mod = &parts.mod(), .kernel = source.name, .arch = plan.spec.arch, .purpose = purpose});
    }
  });
  return out;
}

void dump_candidates(const codegen::GpuParts& parts, const Considered& all, int arch) {
  for (const Candidate& c : all.candidates)
    if (c.binary) dump_source(kernel_of(parts, c.choice, arch), *c.written, choice_file(all));
}

void record_chosen(const compiler::Mod& mod, const Considered& all, int arch) {
  watch::Chosen fact{.mod = mod.digest().hex(),
                     .target = target_name(arch),
                     .kernel = codegen::variant_of(all.candidates[all.chosen].choice.plan).text(),
                     .notes = all.story,
                     .rejected = {}};
  for (std::size_t i = 0; i < all.candidates.size(); ++i)
    if (i != all.chosen)
      fact.rejected.push_back({codegen::variant_of(all.candidates[i].choice.plan).text(),
                               i < all.chosen ? all.candidates[i].flaw : "is tried only after the chosen one"});
  record(std::move(fact));
}

}  // namespace

Considered consider(const codegen::GpuParts& parts, const codegen::CallSpec& call, codegen::Kernels among,
                    Compiles what, const Purpose* purpose) {
  const Waits waits;
  const bool all = what == Compiles::all;
  codegen::KernelChoices choices = codegen::choose(call.spec, parts.facts, codegen::call_kind(parts, call.length),
                                                   call.preference ? &*call.preference : nullptr, among);
  Considered out;
  if (!choices.refused.empty()) out.story.push_back(std::move(choices.refused));
  out.story.insert(out.story.end(), choices.story.begin(), choices.story.end());
  for (codegen::KernelChoice& choice : choices.choices) out.candidates.push_back({std::move(choice)});

  const auto compiled = [&](const Candidate& one) { return binary_of_candidate(parts, one, purpose, what); };
  const auto write = [&](Candidate& one) { one.written = kernel_source_of(parts, one.choice.plan); };
  if (all) {
    std::ranges::for_each(out.candidates, write);
    // Each compilation takes a thread a second or two.
    at_once(out.candidates.size(), [&](std::size_t i) { out.candidates[i].binary = compiled(out.candidates[i]); });
  }
  const bool jit = objects().jit();
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < out.candidates.size() && (!first || all); ++i) {
    Candidate& one = out.candidates[i];
    if (!one.written) write(one);
    if (!all) one.binary = jit ? bundled_facts(one.written->source) : there(one.written->source);
    if (!one.binary && (all || jit))
      one.binary = compiled_for(what) == CompiledFor::bundle ? compiled(one)
                                                             : compiled_with_companions(parts, one, purpose, what);
    one.flaw = one.binary ? flaw_of(*one.binary) : "it is in no bundle, and compiling is off";
    if (!first && will_do(one)) first = i;
  }
  out.chosen = best(out.candidates, first);
  Candidate& taken = out.candidates[out.chosen];
  if (!taken.binary || taken.binary->cubin.empty()) taken.binary = compiled(taken);
  out.first_tier = what == Compiles::first_tier && is_first_tier(*taken.binary, parts, taken.choice.plan);
  if (splicing_of(parts, taken.choice.plan, compiled_for(what)) != Splicing::never && !taken.binary->made.empty())
    out.made = taken.binary->made == "spliced" ? "the mod was put into the tile's skeleton"
                                               : "compiled as a whole: " + taken.binary->made;
  if (dumps()) dump_candidates(parts, out, call.spec.arch);
  if (wants(Fact::chosen)) record_chosen(parts.mod(), out, call.spec.arch);
  return out;
}

}  // namespace attune::runtime::cuda
