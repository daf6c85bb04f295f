// runtime/cuda/consider.cpp — the kernels that can take a call, compiled in turn until one is as it was meant to be
#include "runtime/cuda/consider.h"

#include <functional>
#include <future>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/headers.h"
#include "runtime/single.h"

namespace attune::runtime::cuda {
namespace {

std::string flaw_of(const Binary& binary) {
  if (binary.spilled > 0) return fmt::format("spills {} bytes of registers", binary.spilled);
  if (!binary.warnings.empty()) return binary.warnings[0];
  return {};
}

}  // namespace

std::shared_ptr<const Binary> binary_of(const codegen::Source& source) {
  static Single<std::string, Binary>& made = *new Single<std::string, Binary>;
  if (!nvrtc())
    throw Error("no-compiler", "there is no NVRTC, which compiles kernels for the GPU", {}, nvrtc().refusal,
                "install it: libnvrtc of CUDA 12 or 13");
  const std::string key = fmt::format("{}\n{}\n{}\n{}", fmt::join(source.options, " "), source.symbol, source.text,
                                      codegen::headers_digest());
  return made.get(key, [&] { return std::make_shared<const Binary>(compile(source)); });
}

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
    if (!found && (one.flaw.empty() || last)) {
      found = true;
      out.chosen = out.candidates.size();
    }
    out.candidates.push_back(std::move(one));
  }
  return out;
}

}  // namespace attune::runtime::cuda
