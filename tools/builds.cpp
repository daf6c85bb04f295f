// tools/builds.cpp — builds the rows of a manifest: each kernel once; results in the rows' order
#include "tools/builds.h"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <set>

#include "compiler/lower.h"
#include "ir/parse.h"
#include "runtime/cache/objects.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cuda/consider.h"
#include "runtime/threads.h"

namespace attune::tools {
namespace {

using runtime::objects, runtime::Objects;

/// One task: a GPU kernel with those tried before it, or one CPU object.
struct Job {
  std::string name;
  std::size_t round = 0;  ///< jobs that may share kernels are in different rounds, so that none waits for another
  std::function<std::vector<Built>()> run;
};

/// The time a build took is left out, so that the result is the same whenever it is built.
Built built(const std::string& content, const std::string& label, const runtime::CacheEntry& entry,
            const std::string& target) {
  Built out{.entry = {runtime::cache_key(content), label, entry}, .target = target};
  std::erase_if(out.entry.entry.facts, [](const auto& fact) { return fact.first == "seconds"; });
  return out;
}

// ---- GPU kernels

std::vector<Built> build_forward(const std::shared_ptr<const compiler::LoweredMod>& of, const codegen::KernelSpec& spec,
                                 codegen::Length length, const codegen::Preference* preference) {
  const std::string target = runtime::name_of(runtime::TargetName{.arch = spec.arch});
  const codegen::GpuParts parts = codegen::gpu_parts(*of, spec.scale_positive);
  std::vector<Built> out;
  const auto add = [&](const codegen::Source& page, const std::string& what, const runtime::cuda::Binary& binary) {
    out.push_back(built(runtime::cuda::asked(page).content, fmt::format("{} {}", what, target),
                        runtime::cuda::entry_of(binary, page), target));
    out.back().of = of;
    out.back().page = page;
    out.back().wide = spec.wide;
    out.back().listed = parts.facts.listed;
  };
  const runtime::cuda::Considered all = runtime::cuda::consider(parts, codegen::call_kind(parts, length), spec,
                                                                preference);
  for (std::size_t i = 0; i < all.candidates.size(); ++i) {
    const runtime::cuda::Candidate& one = all.candidates[i];
    if (!one.binary || (i != all.chosen && one.flaw.empty())) continue;
    const codegen::Source& page = one.page->source;
    const std::string what = fmt::format("{} {} D={}/{} {}x{}", page.name, attune::name_of(spec.dtype), spec.d, spec.dv,
                                         one.choice.plan.m, one.choice.plan.n);
    add(page, what, *one.binary);
    out.back().choice = one.choice;
    if (i == all.chosen) continue;
    Built& facts_alone = out.back();
    facts_alone.only_facts = true;
    facts_alone.entry.key = Objects::key_of_facts(runtime::cuda::asked(page).content);
    facts_alone.entry.label = fmt::format("{} {}: {}", what, target, one.flaw);
    facts_alone.entry.entry.bytes.clear();
  }
  if (parts.facts.listed) {
    const codegen::Source page = runtime::cuda::cover_page(*of, spec.wide, spec.arch);
    add(page, "cover", *runtime::cuda::binary_of(page, {of->mod, "cover", spec.arch}));
  }
  return out;
}

void add_gpu_jobs(const ManifestRow& row, const std::shared_ptr<const compiler::LoweredMod>& of,
                  std::vector<Job>& jobs) {
  using enum codegen::Length;
  const codegen::KernelSpec spec = runtime::spec_of(row.shape, row.target.arch.value_or(0));
  std::optional<codegen::Preference> preference;
  if (row.shape.kernel) preference = {codegen::variant(*row.shape.kernel), true, ""};
  const std::vector<codegen::Length> lengths = row.shape.length ? std::vector{*row.shape.length}
                                                                : std::vector{longer, to_4k, to_1k};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const codegen::Length length = lengths[i];
    const auto run = [=](const std::optional<codegen::Preference>& wanted) {
      return build_forward(of, spec, length, wanted ? &*wanted : nullptr);
    };
    jobs.push_back({fmt::format("forward {} {} D={}/{} {}", runtime::name_of(row.target), attune::name_of(spec.dtype),
                                spec.d, spec.dv, codegen::name_of(length)),
                    i, [=] {
                      // Builds the usual kernel too: a machine that was not tuned takes that one.
                      std::vector<Built> out = run(std::nullopt);
                      if (!preference) return out;
                      std::vector<Built> preferred = run(preference);
                      out.insert(out.end(), preferred.begin(), preferred.end());
                      return out;
                    }});
  }
}

// ---- CPU objects

/// The sets of captures whose gradients a backward computes: one for each way to call it.
std::vector<codegen::Wanted> wanted_of(const compiler::Mod& mod, const std::optional<std::string>& grads) {
  codegen::Wanted none(mod.captures.size()), all(mod.captures.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = compiler::type_of(mod.captures[i].dtype) == ir::Type::F32;
  using List = std::vector<codegen::Wanted>;
  if (!grads && all != none) return List{none, all};
  if (!grads || *grads == "none") return List(1, none);
  if (*grads == "all") return List(1, all);
  codegen::Wanted some = none;
  std::vector<std::string> names;
  for (const auto& capture : mod.captures) names.push_back(capture.name);
  for (std::size_t begin = 0; begin <= grads->size();) {
    const std::size_t end = std::min(grads->find('+', begin), grads->size());
    const std::string name = grads->substr(begin, end - begin);
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      const auto near = ir::nearest(name, names);
      throw Error("unknown-capture", fmt::format("there is no capture `{}` to differentiate by", name),
                  {.name = "grads"}, "it is none of the captures that the expressions read",
                  near ? fmt::format("did you mean {}?", *near) : "write all, none, or names of captures joined by +");
    }
    some[static_cast<std::size_t>(found - names.begin())] = true;
    begin = end + 1;
  }
  return List(1, some);
}

void add_cpu_jobs(const ManifestRow& row, const std::shared_ptr<const compiler::LoweredMod>& of, std::vector<Job>& jobs,
                  std::set<std::string>& asked) {
  const codegen::Isa isa = row.target.isa.value_or(codegen::Isa::portable);
  const DType type = row.shape.dtype.value_or(DType::f32);
  std::vector<runtime::cpu::Object> all;
  if (row.pass == "forward") {
    all = runtime::cpu::forward_objects(of->mod, isa, type);
  } else {
    for (const codegen::Wanted& wanted : wanted_of(of->mod, row.shape.grads))
      for (runtime::cpu::Object& one : runtime::cpu::backward_objects(of->mod, wanted, isa, type))
        all.push_back(std::move(one));
  }
  for (runtime::cpu::Object& one : all) {
    if (!asked.insert(one.asked.content).second) continue;
    const std::string target = runtime::name_of(row.target);
    jobs.push_back({one.name, 0, [one, target] {
                      const Objects::Kept kept = objects().get(one.asked, [&] { return one.entry(); });
                      std::vector<Built> out{built(one.asked.content, one.name, *kept, target)};
                      out[0].write = one.write;
                      return out;
                    }});
  }
}

// ---- All of them

std::shared_ptr<const compiler::LoweredMod> lowered(const TextOptions& options) {
  const TextAttention text = build(options, Captures::FilesOrTypes);
  auto out = std::make_shared<compiler::LoweredMod>(compiler::lower(text.attention));
  out->slots = {};  // the captured tensors do not outlive the text
  return out;
}

}  // namespace

Builds build_all(const Manifest& manifest, int threads,
                 const std::function<void(const std::string& row, std::size_t rows)>& step) {
  std::vector<std::shared_ptr<const compiler::LoweredMod>> mods;
  for (const TextOptions& options : manifest.mods) mods.push_back(lowered(options));
  std::vector<Job> jobs;
  std::set<std::string> asked;
  for (const ManifestRow& row : manifest.rows)
    row.target.arch ? add_gpu_jobs(row, mods[row.mod], jobs) : add_cpu_jobs(row, mods[row.mod], jobs, asked);

  std::vector<std::size_t> order(jobs.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return jobs[i].round; });
  std::vector<std::vector<Built>> done(jobs.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < order.size();) try {
        done[order[i]] = jobs[order[i]].run();
        step(jobs[order[i]].name, jobs.size());
      } catch (...) {
        next = order.size();
        throw;
      }
  };
  runtime::on_threads(std::min(order.size(), static_cast<std::size_t>(threads)), work);

  Builds out{.all = {}, .rows = jobs.size()};
  std::set<std::string> there;
  for (std::vector<Built>& some : done)
    for (Built& one : some)
      if (there.insert(one.entry.key.hex()).second) out.all.push_back(std::move(one));
  return out;
}

}  // namespace attune::tools
