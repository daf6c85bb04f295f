// runtime/cuda/consider.cpp — the kernels that can take a call, compiled in turn until one is as it was meant to be
#include "runtime/cuda/consider.h"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <optional>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/headers.h"
#include "runtime/objects.h"

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
std::optional<std::size_t> least_spilling(const std::vector<Candidate>& all) {
  std::optional<std::size_t> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Binary& binary = *all[i].binary;
    if (binary.warnings.empty() && binary.spilled <= (out ? all[*out].binary->spilled - 1 : few_spilled)) out = i;
  }
  return out;
}

CacheEntry entry_of(const Binary& binary, const codegen::Source& source) {
  CacheEntry out{{{"kind", "cubin"},
                  {"kernel", source.name},
                  {"options", fmt::format("{}", fmt::join(source.options, " "))},
                  {"symbol", binary.symbol},
                  {"registers", std::to_string(binary.registers)},
                  {"spilled", std::to_string(binary.spilled)}},
                 binary.cubin};
  for (const std::string& warning : binary.warnings) out.facts.emplace_back("warning", warning);
  return out;
}

Binary binary_of(const CacheEntry& entry) {
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

}  // namespace

std::shared_ptr<const Binary> binary_of(const codegen::Source& source) {
  if (!nvrtc())
    throw Error("no-compiler", "there is no NVRTC, which compiles kernels for the GPU", {}, nvrtc().refusal,
                "install it: libnvrtc of CUDA 12 or 13");
  const std::string key = fmt::format("cubin 1\n{} {}.{}\n{}\n{}\n{}\n{}", nvrtc().build, nvrtc().major, nvrtc().minor,
                                      fmt::join(source.options, " "), source.symbol, codegen::headers_digest(),
                                      source.text);
  const Objects::Kept kept = objects().get(key, [&] {
    ++compiled_so_far;
    return entry_of(compile(source), source);
  });
  return std::make_shared<const Binary>(binary_of(*kept));
}

std::size_t compiled_kernels() { return compiled_so_far; }

Considered consider(const compiler::Mod& mod, const compiler::Cover& cover, const codegen::ForwardSpec& spec,
                    codegen::Length length, const codegen::Preference* preference, bool all) {
  const codegen::ForwardFacts facts = codegen::forward_facts(mod, cover, spec.scale_positive);
  codegen::ForwardChoices choices = codegen::choose(spec, facts, codegen::forward_kind(mod, cover, facts, length),
                                                    preference);
  const auto compiled = [&](const codegen::ForwardChoice& choice) {
    return binary_of(codegen::forward_source(mod, cover, choice.plan, spec.arch));
  };
  // Each takes a second or two of one thread.
  std::vector<std::future<std::shared_ptr<const Binary>>> ahead;
  for (const codegen::ForwardChoice& choice : choices.choices)
    if (all) ahead.push_back(std::async(std::launch::async, compiled, std::cref(choice)));
  for (const auto& one : ahead) one.wait();
  Considered out;
  for (std::string* line : {&choices.refused, &choices.story})
    if (!line->empty()) out.story.push_back(std::move(*line));
  bool found = false;
  for (codegen::ForwardChoice& choice : choices.choices) {
    Candidate one{std::move(choice), nullptr, {}};
    if (!found || all) {
      one.binary = compiled(one.choice);
      one.flaw = flaw_of(*one.binary);
    }
    const bool last = out.candidates.size() + 1 == choices.choices.size();
    if (last && !found) {
      found = true;
      out.chosen = least_spilling(out.candidates).value_or(out.candidates.size());
    } else if (!found && one.flaw.empty()) {
      found = true;
      out.chosen = out.candidates.size();
    }
    out.candidates.push_back(std::move(one));
  }
  return out;
}

}  // namespace attune::runtime::cuda
