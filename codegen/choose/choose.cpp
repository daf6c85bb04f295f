// codegen/choose/choose.cpp — which kernels of a GPU can compute a call, and with which tiles, in the order to try
#include "codegen/choose/choose.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/choose/gpu_element.h"

namespace attune::codegen {
namespace {

const KernelDescriptor* find(Kernels among, std::string_view name) {
  const auto found = std::ranges::find(among, name, &KernelDescriptor::name);
  return found == among.end() ? nullptr : *found;
}

/// The reason why this tile of the kernel is illegal, or empty.
std::string why_illegal(const KernelDescriptor& kernel, const KernelSpec& spec, const Traits& facts,
                        const Variant& variant) {
  for (const Member& member : kernel.members)
    if (std::string why = member.why_not(variant.of(member.name).value_or(0)); !why.empty()) return why;
  if (std::string why = kernel.why_illegal(spec, variant); !why.empty()) return why;
  if (kernel.why_unfit)
    if (std::string why = kernel.why_unfit(facts, variant); !why.empty()) return why;
  const int bytes = kernel.choice(spec, variant).shared_bytes, most = most_shared(spec.arch);
  return bytes > most ? fmt::format("it needs {} bytes of shared memory, and a block has at most {}", bytes, most) : "";
}

/// Makes a tile legal if its usual members contradict those in `named`: sets one of the members that yield to 0, or
/// else all of them. Returns why the tile is illegal even then, or empty.
std::string settle(const KernelDescriptor& kernel, const KernelSpec& spec, const Traits& facts, const Variant& named,
                   Variant& whole) {
  const std::string why = why_illegal(kernel, spec, facts, whole);
  if (why.empty()) return why;
  Variant all = whole;
  for (const Member& member : kernel.members) {
    if (!member.yields || named.of(member.name) || whole.of(member.name) == 0) continue;
    all.set(member.name, 0);
    Variant one = whole;
    one.set(member.name, 0);
    for (const Variant& other : {one, all})
      if (why_illegal(kernel, spec, facts, other).empty()) {
        whole = other;
        return {};
      }
  }
  return why;
}

struct Found {
  std::optional<KernelChoice> choice;
  std::string why;  ///< why there is none
};

Found found(const KernelSpec& spec, const Traits& facts, const CallKind& kind, const Variant& variant, Kernels among) {
  const KernelDescriptor* kernel = find(among, variant.kernel);
  if (!kernel) {
    std::string names;
    for (const KernelDescriptor* one : among) names += fmt::format("{}{}", names.empty() ? "" : " and ", one->name);
    return {{}, "the kernels are " + names};
  }
  if (takes_mla(*kernel) != spec.cache.mla)
    return {{},
            spec.cache.mla ? "heads are wider than it supports"
                           : "it is for MLA, whose values are columns of the keys"};
  if (std::string why = kernel->why_not(spec, facts); !why.empty()) return {{}, why};
  // Members that are not named come from the first usual tile that has the named ones, or else from the first usual
  // tile.
  const std::vector<Variant> usual = kernel->tiles(spec, facts, kind);
  const auto alike = std::ranges::find_if(usual, [&](const Variant& one) {
    return std::ranges::all_of(variant.members, [&](const auto& named) { return one.of(named.first) == named.second; });
  });
  Variant whole = alike == usual.end() ? usual.front() : *alike;
  for (const auto& [name, value] : variant.members) {
    if (std::ranges::find(kernel->members, name, &Member::name) == kernel->members.end())
      return {{}, fmt::format("{} has no `{}`", variant.kernel, name)};
    whole.set(name, value);
  }
  if (std::string why = settle(*kernel, spec, facts, variant, whole); !why.empty()) return {{}, why};
  KernelChoice choice = kernel->choice(spec, whole);
  if (choice.plan.tile.alone && kind.length > Length::to_128)
    return {{}, fmt::format("it is for up to {} keys, and there are more: alone must be 0", choice.plan.tile.n)};
  return {std::move(choice), {}};
}

/// Throws an Error if no kernel takes such calls.
void require_possible(const KernelSpec& spec) {
  if (spec.arch < 80)
    throw Error("engine-arch", "the device is too old for the CUDA engine", {},
                fmt::format("it has compute capability {}.{}, and kernels need 8.0", spec.arch / 10, spec.arch % 10),
                "compute on another device, or on the host");
  if (!find_gpu_element(spec.dtype))
    throw Error("engine-type", "the CUDA engine computes in f32", {},
                fmt::format("q, k and v hold {}", name_of(spec.dtype)),
                "convert them to f32, or take the oracle as target, on the host");
  if (!spec.cache.mla && (spec.d > widest_head || spec.dv > widest_head))
    throw Error(
        "engine-width", "heads are too wide for the CUDA engine", {},
        fmt::format("D is {} and Dv is {}, and kernels support up to {}, or {} and {} where v is a view of k: its "
                    "first columns",
                    spec.d, spec.dv, widest_head, mla_d, mla_dv),
        "split the heads, or compute on the host");
}

}  // namespace

KernelSpec backward_spec(KernelSpec of) {
  of.out = of.dtype;
  of.max = of.before = of.fixed_split = false;
  of.cache = {};
  of.sharing = {.shared_keys = of.sharing.shared_keys};
  of.strides.store = Strides{}.store;
  return of;
}

KernelChoices choose(const KernelSpec& wishes, const Traits& facts, const CallKind& kind, const Preference* preference,
                     Kernels among) {
  KernelSpec spec = wishes;
  if (!facts.shares_tiles) spec.sharing.heads = 1;
  if (!facts.copied_reads) spec.strides.unaligned_captures = false;
  if (facts.copied_reads < 2) spec.strides.unaligned_second = false;
  // Results over a part of the keys cannot be added up before the sum over all of them is known.
  if (facts.has_prob && facts.degree != 1) spec.sharing.few_tiles = false;
  require_possible(spec);
  KernelChoices out;
  if (preference) {
    Found first = found(spec, facts, kind, preference->variant, among);
    if (!first.choice && preference->only)
      throw Error("bad-kernel", "the requested kernel does not support this call", {.name = preference->variant.text()},
                  first.why, "name another, or leave the choice to attune");
    if (first.choice) out.choices.push_back(std::move(*first.choice));
    if (preference->only) return out;
    if (!first.why.empty()) out.refused = fmt::format("not {}: {}", preference->variant.text(), first.why);
  }
  // Other kernels, even if they spill less, support no lengths, positions, page tables or fixed split sizes.
  const bool cuts = (spec.cache.per_entry || spec.fixed_split) &&
                    std::ranges::any_of(among, [&](const KernelDescriptor* kernel) {
                      return cuts_keys(*kernel) && takes_mla(*kernel) == spec.cache.mla &&
                             kernel->why_not(spec, facts).empty();
                    });
  for (const KernelDescriptor* kernel : among) {
    if (takes_mla(*kernel) != spec.cache.mla || (cuts && !cuts_keys(*kernel))) continue;
    if (kernel->is_for && !kernel->is_for(spec)) continue;
    if (const std::string why = kernel->why_not(spec, facts); !why.empty()) {
      out.story.push_back(fmt::format("not {}: {}", kernel->name, why));
      continue;
    }
    for (const Variant& variant : kernel->tiles(spec, facts, kind))
      out.choices.push_back(kernel->choice(spec, variant));
  }
  if (out.choices.empty() && spec.cache.mla)
    throw Error("engine-call", "no CUDA kernel supports this MLA call", {},
                fmt::format("D is {} and Dv is {}; {}", spec.d, spec.dv, fmt::join(out.story, "; ")),
                "change what it names, or compute on the host");
  if (out.choices.empty() && (spec.cache.fp8 || spec.dtype == DType::e4m3)) {
    std::vector<std::string> why;
    for (const KernelDescriptor* kernel : among)
      if (!takes_mla(*kernel)) why.push_back(fmt::format("{}: {}", kernel->name, kernel->why_not(spec, facts)));
    throw Error(
        "engine-type",
        fmt::format("no CUDA kernel supports this call with {} of e4m3", spec.cache.fp8 ? "k and v" : "q, k and v"), {},
        fmt::format("{}", fmt::join(why, "; ")),
        spec.cache.fp8 ? "convert k and v to the type of q" : "convert q, k and v to bf16 or f16");
  }
  if (out.choices.empty()) throw Bug("no kernel supports this call");
  return out;
}

bool takes(const Preference& preference, Way way) {
  const auto has = [&](Way of) { return find(kernels(of), preference.variant.kernel) != nullptr; };
  using enum Way;
  return has(way) || std::ranges::none_of(std::array{forward, backward, queries, keys}, has);
}

std::vector<Way> ways_of_backward(const KernelSpec& spec, const Traits& facts) {
  const Kernels whole = kernels(Way::backward);
  const bool one = std::ranges::any_of(
      whole, [&](const KernelDescriptor* kernel) { return kernel->why_not(spec, facts).empty(); });
  return one ? std::vector{Way::backward} : std::vector{Way::queries, Way::keys};
}

Variant variant_of(const KernelPlan& plan) {
  Variant out{std::string(plan.kernel->name), {}};
  for (const Member& member : plan.kernel->members) out.set(member.name, plan.variant.of(member.name).value_or(0));
  return out;
}

std::vector<Variant> other_tiles(const KernelSpec& spec, const Traits& facts, const Variant& from, Kernels among) {
  const KernelDescriptor* kernel = find(among, from.kernel);
  if (!kernel || !kernel->other_tiles || !kernel->why_not(spec, facts).empty()) return {};
  std::vector<Variant> out;
  for (const std::vector<Variant>& group : kernel->other_tiles(from)) {
    const auto first = std::ranges::find_if(
        group, [&](const Variant& other) { return why_illegal(*kernel, spec, facts, other).empty(); });
    if (first != group.end() && *first != from) out.push_back(*first);
  }
  return out;
}

std::vector<Variant> other_ways(const KernelSpec& spec, const Traits& facts, const Variant& from, Kernels among) {
  const KernelDescriptor* kernel = find(among, from.kernel);
  if (!kernel || !kernel->why_not(spec, facts).empty()) return {};
  std::vector<Variant> out;
  for (const Search& search : kernel->searches)
    for (int value = search.least; value <= search.most; ++value) {
      Variant other = from;
      other.set(search.member, value);
      if (other != from && why_illegal(*kernel, spec, facts, other).empty()) out.push_back(other);
    }
  return out;
}

}  // namespace attune::codegen
