// runtime/cuda/consider.cpp — the kernels that can take a call, compiled in turn until one is as it was meant to be
#include "runtime/cuda/consider.h"

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

#include "codegen/headers.h"
#include "runtime/cache/objects.h"
#include "runtime/cache/told.h"
#include "runtime/options.h"
#include "runtime/threads.h"

namespace attune::runtime::cuda {
namespace {

std::atomic<std::size_t> compiled_so_far{0};

/// Bytes of registers that a kernel may spill and still be better than the one that takes any call.
constexpr int few_spilled = 128;

std::string flaw_of(const Binary& binary) {
  if (binary.spilled > 0) return fmt::format("spills {} bytes of registers", binary.spilled);
  if (!binary.warnings.empty()) return binary.warnings[0];
  return {};
}

/// Of candidates that all have flaws, the one whose only flaw is that it spills a few bytes, and the fewest.
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
  }
  return out;
}

/// From memory, a bundle or the disk.
std::shared_ptr<const Binary> there(const codegen::Source& source) {
  const Objects::Kept kept = objects().find(asked(source));
  return kept ? std::make_shared<const Binary>(read_binary(*kept)) : nullptr;
}

/// What a bundle says of a page that was compiled for it, and not taken: then it need not be compiled again.
std::shared_ptr<const Binary> bundled_facts(const codegen::Source& source) {
  const Objects::Kept kept = objects().facts(asked(source).content);
  return kept ? std::make_shared<const Binary>(read_binary(*kept)) : nullptr;
}

/// The portable kernel's wide tiles spill a little, and are faster than narrow ones that do not.
bool will_do(const Candidate& one) {
  return one.flaw.empty() || (!one.choice.copy_engine && least_spilling(std::span(&one, 1), few_spilled));
}

/// Which of the candidates is taken; `whole` is the first that will do. The portable kernel takes any call, and its
/// time: a fast one is better even if it spills a little.
std::size_t best(std::span<const Candidate> all, std::optional<std::size_t> whole) {
  const auto portable = std::ranges::find_if(all, [](const Candidate& one) { return !one.choice.copy_engine; });
  const auto fast = static_cast<std::size_t>(portable - all.begin());
  if (whole && *whole < fast) return *whole;
  if (const auto least = least_spilling(all.first(fast), few_spilled)) return *least;
  if (whole) return *whole;
  constexpr int any = std::numeric_limits<int>::max();
  if (const auto least = least_spilling(all.subspan(fast), any)) return fast + *least;
  // With compiling off, what there is.
  if (const auto least = least_spilling(all, any)) return *least;
  const auto first = std::ranges::find_if(all, [](const Candidate& one) { return one.binary != nullptr; });
  return first == all.end() ? 0 : static_cast<std::size_t>(first - all.begin());
}

/// Of a page that knows no lines: so that what tells where a page lies is not in it.
DumpOf dump_of(const KernelOf& of, const codegen::Source& page) {
  return {.mod = &of.mod,
          .target = target_name(of.arch),
          .kernel = of.kernel,
          .all = fmt::format("{} {}", page.text, fmt::join(page.options, " "))};
}

constexpr const char* page_name = "05-page.cu";

/// Where a dump has the page.
std::filesystem::path page_path(const KernelOf& of, const codegen::Source& page) {
  return std::filesystem::absolute(dump_folder(dump_of(of, page)) / page_name);
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

/// Compiled once more: neither PTX nor the log is kept.
void dump_page(const KernelOf& of, const codegen::Source& plain, const codegen::Source& page, std::string choice) {
  dump(dump_of(of, plain), [&] {
    Binary binary = compile(page, Ptx::yes);
    return std::vector<DumpFile>{{"04-choice.txt", std::move(choice)},
                                 {page_name, fmt::format("{}", page.text)},
                                 {"06-kernel.ptx", std::move(binary.ptx)},
                                 {"07-kernel.cubin", std::move(binary.cubin)},
                                 {"08-nvrtc.log", fmt::format("{}\n{}\n", fmt::join(page.options, " "), binary.log)}};
  });
}

}  // namespace

Asked asked(const codegen::Source& source) {
  return {fmt::format("cubin 2\n{}\n{}\n{}\n{}", fmt::join(source.options, " "), source.symbol,
                      codegen::headers_digest(), source.text),
          [] { return nvrtc() ? fmt::format("{} {}.{}", nvrtc().build, nvrtc().major, nvrtc().minor) : ""; }};
}

CacheEntry entry_of(const Binary& binary, const codegen::Source& source) {
  CacheEntry out{{{"kind", "cubin"},
                  {"kernel", source.name},
                  {"options", fmt::format("{}", fmt::join(source.options, " "))},
                  {"symbol", binary.symbol},
                  {"registers", std::to_string(binary.registers)},
                  {"spilled", std::to_string(binary.spilled)}},
                 binary.cubin};
  out.facts.insert(out.facts.begin() + 2, source.facts.begin(), source.facts.end());
  for (const std::string& warning : binary.warnings) out.facts.emplace_back("warning", warning);
  return out;
}

std::shared_ptr<const Binary> binary_of(const codegen::Source& source, const KernelOf& of) {
  const Clock clock;
  Origin origin;
  const Asked what = asked(source);
  const Objects::Kept kept = objects().get(
      what,
      [&] {
        if (!nvrtc())
          throw Error(
              "no-compiler", "there is no NVRTC, which compiles kernels for the GPU", {}, nvrtc().refusal,
              "install it: libnvrtc of CUDA 12 or 13; or load a bundle that has the kernel, see docs/offline.md");
        ++compiled_so_far;
        return entry_of(compile(source), source);
      },
      &origin);
  const auto binary = std::make_shared<const Binary>(read_binary(*kept));
  told_built({&of.mod, of.kernel, target_name(of.arch)}, origin, what, clock.seconds(),
             {binary->cubin.size(), binary->registers, binary->spilled, of.shared_bytes, flaw_of(*binary)});
  return binary;
}

std::string target_name(int arch) { return fmt::format("sm_{}{}", arch, arch == 90 ? "a" : ""); }

std::size_t compiled_kernels() { return compiled_so_far; }

codegen::Source forward_page(const compiler::Mod& mod, const compiler::Cover& cover, const codegen::ForwardPlan& plan,
                             int arch) {
  codegen::Source page = codegen::forward_source(mod, cover, plan, arch);
  if (!options().lineinfo) return page;
  const KernelOf of{mod, codegen::variant_of(plan).text(), arch};
  return codegen::forward_source(mod, cover, plan, arch, dumps() ? page_path(of, page).string() : page.name + ".cu");
}

codegen::Source cover_page(const compiler::Mod& mod, const compiler::Cover& cover, bool wide, int arch) {
  codegen::Source page = codegen::cover_source(mod, cover, wide, arch);
  if (options().lineinfo) page.options.emplace_back(codegen::line_option);
  return page;
}

namespace {

void dump_candidates(const compiler::Mod& mod, const compiler::Cover& cover, const Considered& all, int arch) {
  for (const Candidate& c : all.candidates)
    if (c.binary)
      dump_page({mod, codegen::variant_of(c.choice.plan).text(), arch},
                codegen::forward_source(mod, cover, c.choice.plan, arch), forward_page(mod, cover, c.choice.plan, arch),
                choice_file(all));
}

void tell_chosen(const compiler::Mod& mod, const Considered& all, int arch) {
  watch::Chosen fact{.mod = mod.digest().hex(),
                     .target = target_name(arch),
                     .kernel = codegen::variant_of(all.candidates[all.chosen].choice.plan).text(),
                     .notes = all.story,
                     .rejected = {}};
  for (std::size_t i = 0; i < all.candidates.size(); ++i)
    if (i != all.chosen)
      fact.rejected.push_back({codegen::variant_of(all.candidates[i].choice.plan).text(),
                               i < all.chosen ? all.candidates[i].flaw : "comes after the chosen one"});
  tell(std::move(fact));
}

}  // namespace

Considered consider(const compiler::Mod& mod, const compiler::Cover& cover, const codegen::ForwardSpec& spec,
                    codegen::Length length, const codegen::Preference* preference, bool all) {
  const codegen::ForwardFacts facts = codegen::forward_facts(mod, cover, spec.scale_positive);
  codegen::ForwardChoices choices = codegen::choose(spec, facts, codegen::forward_kind(mod, cover, facts, length),
                                                    preference);
  const auto source = [&](const codegen::ForwardChoice& choice) {
    return forward_page(mod, cover, choice.plan, spec.arch);
  };
  const auto compiled = [&](const codegen::ForwardChoice& choice) {
    return binary_of(source(choice), {mod, codegen::variant_of(choice.plan).text(), spec.arch, choice.shared_bytes});
  };
  // Each takes a second or two of one thread.
  if (all) {
    std::atomic<std::size_t> next = 0;
    on_threads(choices.choices.size(), [&] {
      for (std::size_t i; (i = next++) < choices.choices.size();) compiled(choices.choices[i]);
    });
  }
  Considered out;
  for (std::string* line : {&choices.refused, &choices.story})
    if (!line->empty()) out.story.push_back(std::move(*line));
  std::optional<std::size_t> chosen;
  for (codegen::ForwardChoice& choice : choices.choices) {
    Candidate one{std::move(choice), nullptr, {}};
    if (!chosen || all) {
      const codegen::Source page = source(one.choice);
      const bool jit = objects().jit();
      if (!all) one.binary = jit ? bundled_facts(page) : there(page);
      if (!one.binary && (all || jit)) one.binary = compiled(one.choice);
      one.flaw = one.binary ? flaw_of(*one.binary) : "it is in no bundle, and compiling is off";
    }
    if (!chosen && will_do(one)) chosen = out.candidates.size();
    out.candidates.push_back(std::move(one));
  }
  out.chosen = best(out.candidates, chosen);
  Candidate& taken = out.candidates[out.chosen];
  if (!taken.binary || taken.binary->cubin.empty()) taken.binary = compiled(taken.choice);
  if (dumps()) dump_candidates(mod, cover, out, spec.arch);
  if (wants(Fact::chosen)) tell_chosen(mod, out, spec.arch);
  return out;
}

}  // namespace attune::runtime::cuda
