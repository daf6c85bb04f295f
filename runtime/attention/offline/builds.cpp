// runtime/attention/offline/builds.cpp — builds the rows of a manifest: each kernel once; results in the rows' order
#include "runtime/attention/offline/builds.h"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <set>

#include "compiler/lower.h"
#include "ir/parse.h"
#include "runtime/engines/cpu/kernels.h"
#include "runtime/engines/cuda/kernels/consider.h"
#include "runtime/engines/cuda/kernels/spliced.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/threads.h"
#include "runtime/machine/watch/waits.h"

namespace attune::runtime {
namespace {

/// One task: a GPU kernel together with the kernels that are tried before it, or one CPU object.
struct Job {
  std::string name;
  std::size_t round = 0;  ///< jobs that may share kernels are in different rounds, so that no job waits for another
  std::function<std::vector<Built>()> run;
};

/// The build time is left out, so that the result is reproducible.
Built built(const std::string& content, const std::string& label, const CacheEntry& entry, const std::string& target) {
  Built out{.entry = {cache_key(content), label, entry}, .target = target};
  std::erase_if(out.entry.entry.facts, [](const auto& fact) { return fact.first == "seconds"; });
  return out;
}

// ---- GPU kernels

/// The inputs of the kernels of a Mod for one GPU, and the list that they are added to.
class GpuBuild {
 public:
  GpuBuild(std::shared_ptr<const compiler::LoweredMod> of, int arch)
      : of_(std::move(of)), arch_(arch), target_(name_of(TargetName{.arch = arch})) {}

  /// Builds the kernel that such calls take for one way, the facts about kernels that were tried before it, and the
  /// kernel that lists its tiles. `call` has the spec of this way.
  void walker(codegen::Way way, const codegen::CallSpec& call) {
    const codegen::KernelSpec& spec = call.spec;
    const codegen::GpuParts parts = codegen::parts_of(*of_, call, way);
    const bool listed = parts.facts.listed;
    const auto add = [&](const codegen::Source& source, const std::string& what, const cuda::Binary& binary) {
      this->add(source, what, binary);
      out_.back().of = of_;
      out_.back().way = way;
      out_.back().offsets64 = spec.strides.offsets64;
      out_.back().listed = listed;
    };
    const cuda::Considered all = cuda::consider(parts, call, codegen::kernels(way));
    for (std::size_t i = 0; i < all.candidates.size(); ++i) {
      const cuda::Candidate& one = all.candidates[i];
      if (!one.binary || (i != all.chosen && one.flaw.empty())) continue;
      const codegen::Source& source = one.written->source;
      const std::string what = fmt::format("{} {} D={}/{} {}x{}", source.name, attune::name_of(spec.dtype), spec.d,
                                           spec.dv, one.choice.plan.tile.m, one.choice.plan.tile.n);
      add(source, what, *one.binary);
      out_.back().choice = one.choice;
      if (i == all.chosen) continue;
      Built& facts_alone = out_.back();
      facts_alone.only_facts = true;
      facts_alone.entry.key = Objects::key_of_facts(cuda::asked(source).content);
      facts_alone.entry.label = fmt::format("{} {}: {}", what, target_, one.flaw);
      facts_alone.entry.entry.bytes.clear();
    }
    const codegen::KernelPlan& plan = all.candidates[all.chosen].choice.plan;
    for (const cuda::KeptSkeleton& kept : cuda::skeleton_of(parts, plan)) this->add(kept, plan);
    for (const codegen::Companion* one : codegen::companions_of(parts, plan)) {
      const codegen::Source source = cuda::companion_source_of(*one, parts, plan);
      // Lists along both axes are made by kernels of the same name.
      const bool lists = one->writes_lists();
      add(source, lists ? std::string(one->role) : source.name, compiled(source, source.name));
    }
  }

  /// Builds the skeleton of one way's kernel for such calls, and the companion kernels that all mods of the skeleton
  /// share.
  void skeleton(codegen::Way way, const codegen::CallSpec& call) {
    const codegen::GpuParts parts = codegen::parts_of(*of_, call, way);
    const cuda::Considered all = cuda::consider(parts, call, codegen::kernels(way));
    const cuda::Candidate& one = all.candidates[all.chosen];
    if (!one.binary) return;
    const codegen::KernelPlan& plan = one.choice.plan;
    const std::vector<cuda::KeptSkeleton> all_kept = cuda::make_skeleton(one.written->source, one.binary->spilled,
                                                                         parts, plan);
    for (const cuda::KeptSkeleton& kept : all_kept) add(kept, plan);
    if (all_kept.empty()) return;
    for (const codegen::Companion* companion : codegen::companions_of(parts, plan)) {
      if (!companion->of_any_mod) continue;
      const codegen::Source source = cuda::companion_source_of(*companion, parts, plan);
      add(source, source.name, compiled(source, source.name));
    }
  }

  /// Builds the kernels that every call needs, independent of the chosen kernel: they contain no expression.
  void of_calls(const codegen::CallSpec& call, codegen::Way way) {
    const codegen::GpuParts parts = codegen::parts_of(*of_, call, way);
    const codegen::KernelPlan of_call{.spec = call.spec};
    for (const codegen::Companion* one : codegen::companions_of_calls())
      if (one->is_needed(parts, of_call)) {
        const codegen::Source source = one->source_of(parts, of_call);
        add(source, source.name, compiled(source, source.name));
      }
  }

  std::vector<Built> done() { return std::move(out_); }

 private:
  void add(const cuda::KeptSkeleton& kept, const codegen::KernelPlan& plan) {
    const std::string label = fmt::format("{} {} D={}/{} {}x{} skeleton {}", plan.kernel->name,
                                          attune::name_of(plan.spec.dtype), plan.spec.d, plan.spec.dv, plan.tile.m,
                                          plan.tile.n, target_);
    out_.push_back(built(kept.content, label, kept.entry, target_));
    out_.back().skeleton = true;
  }
  cuda::Binary compiled(const codegen::Source& source, const std::string& kernel) const {
    return *cuda::binary_of(source, {.mod = &of_->mod, .kernel = kernel, .arch = arch_});
  }
  void add(const codegen::Source& source, const std::string& what, const cuda::Binary& binary) {
    out_.push_back(built(cuda::asked(source).content, fmt::format("{} {}", what, target_),
                         cuda::entry_of(binary, source), target_));
    out_.back().source = source;
  }

  std::shared_ptr<const compiler::LoweredMod> of_;
  int arch_;
  std::string target_;
  std::vector<Built> out_;
};

/// The calls of each length that the request is for. A request says neither how many tiles of queries there are nor how
/// large a cache is: where kernels differ by that, these are calls of both kinds.
std::vector<codegen::CallSpec> calls_of(const Request& request) {
  using codegen::Length;
  std::vector<Length> lengths{codegen::all_lengths.rbegin(), codegen::all_lengths.rend()};
  if (!request.each_length) lengths = {request.call.length};
  std::vector<codegen::CallSpec> out;
  for (const Length length : lengths) {
    const std::size_t first = out.size();
    out.push_back(request.call);
    out.back().length = length;
    if (request.pass != "forward") continue;
    const codegen::KernelSpec& spec = request.call.spec;
    const auto add_changed = [&](auto change) {
      for (std::size_t i = first, end = out.size(); i < end; ++i) {
        out.push_back(out[i]);
        change(out.back().spec.sharing);
      }
    };
    if (codegen::may_prepare(spec) && spec.cache.paged() && spec.sharing.rows == codegen::QueryRows::many)
      add_changed([](codegen::Sharing& by) { by.rows = codegen::QueryRows::few; });
    if (codegen::may_split_keys(spec) && length > Length::to_224)
      add_changed([](codegen::Sharing& by) { by.few_tiles = true; });
  }
  return out;
}

/// A job for each kind of calls, for one way's kernel. `wanted`: the gradients of a backward.
void add_walker_jobs(const Request& request, const std::shared_ptr<const compiler::LoweredMod>& of, codegen::Way way,
                     const std::optional<codegen::Wanted>& wanted, std::vector<Job>& jobs) {
  std::size_t round = 0;
  for (codegen::CallSpec& one : calls_of(request)) {
    one.backward = wanted;
    const codegen::CallSpec call = codegen::of_way(std::move(one), way);
    const codegen::KernelSpec& spec = call.spec;
    jobs.push_back({fmt::format("{} {} {} D={}/{} {}", codegen::name_of(way), name_of(request.target),
                                attune::name_of(spec.dtype), spec.d, spec.dv, codegen::name_of(call.length)),
                    round++, [=, skeleton = request.skeleton] {
                      GpuBuild build(of, call.spec.arch);
                      // The usual kernel too, for machines that were not tuned.
                      codegen::CallSpec usual = call;
                      usual.preference.reset();
                      skeleton ? build.skeleton(way, usual) : build.walker(way, usual);
                      if (call.preference && !skeleton) build.walker(way, call);
                      return build.done();
                    }});
  }
}

/// A job for the kernels that every call of the request needs, whichever kernels are chosen. `wanted`: every set of
/// gradients that a call may ask for.
void add_call_job(const Request& request, const std::shared_ptr<const compiler::LoweredMod>& of,
                  const std::vector<codegen::Wanted>& wanted, std::vector<Job>& jobs) {
  codegen::CallSpec call = request.call;
  const codegen::KernelSpec& spec = call.spec;
  const std::string name = fmt::format("{} and {} D={}/{}", name_of(request.target), attune::name_of(spec.dtype),
                                       spec.d, spec.dv);
  jobs.push_back({name, 0, [=]() mutable {
                    GpuBuild build(of, call.spec.arch);
                    if (wanted.empty()) build.of_calls(call, codegen::Way::forward);
                    for (const codegen::Wanted& one : wanted) {
                      call.backward = one;
                      build.of_calls(call, codegen::Way::backward);
                    }
                    return build.done();
                  }});
}

void add_gpu_jobs(const Request& request, const std::shared_ptr<const compiler::LoweredMod>& of,
                  std::vector<Job>& jobs) {
  using enum codegen::Way;
  if (request.pass == "forward") {
    if (request.call.spec.cache.per_entry) add_call_job(request, of, {}, jobs);
    return add_walker_jobs(request, of, forward, std::nullopt, jobs);
  }
  const std::vector<codegen::Wanted> all = wanted_of(of->mod, request.grads);
  for (const codegen::Wanted& wanted : all) {
    codegen::CallSpec call = request.call;
    call.backward = wanted;
    std::vector<codegen::Way> ways = codegen::ways_of_backward(codegen::backward_spec(call.spec),
                                                               codegen::parts_of(*of, call, backward).facts);
    // The requested kernel may be a kernel for one part of the backward.
    if (call.preference && ways.size() == 1 && !codegen::takes(*call.preference, backward))
      ways = {backward, queries, keys};
    for (const codegen::Way way : ways) add_walker_jobs(request, of, way, wanted, jobs);
  }
  add_call_job(request, of, all, jobs);
}

// ---- CPU objects

void add_cpu_jobs(const Request& request, const std::shared_ptr<const compiler::LoweredMod>& of, std::vector<Job>& jobs,
                  std::set<std::string>& asked) {
  const codegen::Isa isa = request.target.isa.value_or(codegen::Isa::portable);
  const DType type = request.call.spec.dtype;
  std::vector<cpu::Object> all;
  if (request.pass == "forward") {
    all = cpu::forward_objects(of->mod, isa, type);
  } else {
    for (const codegen::Wanted& wanted : wanted_of(of->mod, request.grads))
      for (cpu::Object& one : cpu::backward_objects(of->mod, wanted, isa, type)) all.push_back(std::move(one));
  }
  for (cpu::Object& one : all) {
    if (!asked.insert(one.asked.content).second) continue;
    const std::string target = name_of(request.target);
    jobs.push_back({one.name, 0, [one, target] {
                      const Objects::Kept kept = objects().get(one.asked, [&] { return one.entry(); });
                      std::vector<Built> out{built(one.asked.content, one.name, *kept, target)};
                      out[0].write = one.write;
                      return out;
                    }});
  }
}

// ---- All of them

std::shared_ptr<const compiler::LoweredMod> lowered(const Written& options) {
  const TextAttention text = build(options, Captures::FilesOrTypes);
  auto out = std::make_shared<compiler::LoweredMod>(compiler::lower(text.attention));
  out->slots = {};  // the captured tensors do not outlive the text
  return out;
}

}  // namespace

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
                  {.name = "grads"}, "the expressions read no capture of this name",
                  near ? fmt::format("did you mean {}?", *near) : "write all, none, or names of captures joined by +");
    }
    some[static_cast<std::size_t>(found - names.begin())] = true;
    begin = end + 1;
  }
  return List(1, some);
}

Builds build_all(const Manifest& manifest, int threads,
                 const std::function<void(const std::string& row, std::size_t rows)>& step) {
  const Waits waits;
  std::vector<std::pair<Written, std::shared_ptr<const compiler::LoweredMod>>> mods;
  std::vector<Job> jobs;
  std::set<std::string> asked;
  for (const Request& request : manifest) {
    auto mod = std::ranges::find(mods, request.mod, [](const auto& one) -> const Written& { return one.first; });
    if (mod == mods.end()) mod = mods.insert(mod, {request.mod, lowered(request.mod)});
    request.target.arch ? add_gpu_jobs(request, mod->second, jobs) : add_cpu_jobs(request, mod->second, jobs, asked);
  }

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
  on_threads(std::min(order.size(), static_cast<std::size_t>(threads)), work);

  Builds out{.all = {}, .rows = jobs.size()};
  std::set<std::string> there;
  for (std::vector<Built>& some : done)
    for (Built& one : some)
      if (there.insert(one.entry.key.hex()).second) out.all.push_back(std::move(one));
  return out;
}

}  // namespace attune::runtime
