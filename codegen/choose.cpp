// codegen/choose.cpp — which kernels of a GPU can compute a call, and with which tiles, in the order to try
#include "codegen/choose.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::codegen {
namespace {

// Sets of kinds, as kernels.def has them.
constexpr unsigned any = ~0u;
template <class Kind>
constexpr unsigned only(Kind kind) {
  return 1u << static_cast<unsigned>(kind);
}
constexpr unsigned full = only(CoverKind::full), masked = any & ~full, listed = only(CoverKind::listed),
                   heavy = only(ModKind::heavy);
constexpr unsigned to_1k = only(Length::to_1k), to_4k = only(Length::to_4k);
template <class Kind>
bool holds(unsigned set, Kind kind) {
  return set >> static_cast<unsigned>(kind) & 1;
}

/// How a tile is cut; each kernel has its own.
struct Cut90 {
  int m, n, stages, q_stages, own_o, turns, dynamic = 0;
  bool operator==(const Cut90&) const = default;
};
struct Sm90 {
  int d, dv;
  Cut90 cut;
  unsigned covers, mods, lengths;

  bool is_for(const ForwardKind& kind) const {
    return holds(covers, kind.cover) && holds(mods, kind.mod) && holds(lengths, kind.length);
  }
};
constexpr Sm90 sm90_row(int d, int dv, int m, int n, int stages, int q_stages, int own_o, int turns, unsigned covers,
                        unsigned mods, unsigned lengths) {
  return {d, dv, {m, n, stages, q_stages, own_o, turns}, covers, mods, lengths};
}
constexpr std::array sm90{
#define ATTUNE_SM90(...) sm90_row(__VA_ARGS__),
#define ATTUNE_SM80(...)
#include "codegen/kernels.def"
#undef ATTUNE_SM80
#undef ATTUNE_SM90
};

struct Cut80 {
  int m, n, stages, warps;
};
struct Sm80 {
  int bytes, d;
  Cut80 cut;
};
constexpr Sm80 sm80_row(int bytes, int d, int m, int n, int stages, int warps) {
  return {bytes, d, {m, n, stages, warps}};
}
constexpr std::array sm80{
#define ATTUNE_SM90(...)
#define ATTUNE_SM80(...) sm80_row(__VA_ARGS__),
#include "codegen/kernels.def"
#undef ATTUNE_SM80
#undef ATTUNE_SM90
};

/// A member of a cut by its name, as Variants and Tiles have it.
template <class Cut>
struct Member {
  std::string_view name;
  int Cut::*at;
};
constexpr std::array<Member<Cut90>, 7> members90{{{"m", &Cut90::m},
                                                  {"n", &Cut90::n},
                                                  {"stages", &Cut90::stages},
                                                  {"q_stages", &Cut90::q_stages},
                                                  {"own_o", &Cut90::own_o},
                                                  {"turns", &Cut90::turns},
                                                  {"dynamic", &Cut90::dynamic}}};
constexpr std::array<Member<Cut80>, 4> members80{
    {{"m", &Cut80::m}, {"n", &Cut80::n}, {"stages", &Cut80::stages}, {"warps", &Cut80::warps}}};
constexpr std::string_view name90 = "forward_sm90", name80 = "forward_sm80";

int rounded_up(std::int64_t x, int to) { return static_cast<int>((x + to - 1) / to * to); }

ForwardPlan plan_of(const ForwardSpec& spec, std::string kernel, int m, int n, int stages) {
  const int grain = size_of(spec.dtype) == 4 ? 32 : 16;
  return {.kernel = std::move(kernel),
          .dtype = spec.dtype,
          .out = spec.out,
          .m = m,
          .n = n,
          .d = rounded_up(spec.d, grain),
          .dv = rounded_up(spec.dv, grain),
          .stages = stages,
          .heads = spec.heads,
          .max = spec.max,
          .packed = spec.packed,
          .scale_positive = spec.scale_positive,
          .exact = spec.exact,
          .wide = spec.wide};
}

/// As struct Shared90 of deal_sm90.cuh counts, and what aligns it to 1024 bytes.
int shared_bytes(const ForwardPlan& plan, const Cut90& cut) {
  const int chunks = (plan.d + 63) / 64, dv_chunks = (plan.dv + 63) / 64, line = 128;
  const int q = chunks * cut.m, k = chunks * cut.n, v = dv_chunks * cut.n, o = dv_chunks * cut.m;
  const int barriers = 16 * (cut.q_stages + 2 * cut.stages), item = 16 + 16 + 64, again = 4 * 32 * (cut.m / 16);
  const int queries = cut.own_o ? cut.q_stages * q + o : std::max(cut.q_stages * q, o);
  return line * (queries + cut.stages * (k + v)) + barriers + item + again + 1024;
}

ForwardChoice choice_of(const ForwardSpec& spec, const Cut90& cut) {
  ForwardPlan plan = plan_of(spec, std::string(name90), cut.m, cut.n, cut.stages);
  plan.traits = {{"q_stages", cut.q_stages}, {"own_o", cut.own_o}, {"turns", cut.turns}, {"dynamic", cut.dynamic}};
  const int bytes = shared_bytes(plan, cut);
  return {std::move(plan), 128 * (cut.m / 64 + 1), bytes, true, true};
}

/// As struct Shared80 of forward_sm80.cuh counts.
int shared_bytes(const ForwardSpec& spec, const ForwardPlan& plan, const Cut80& cut) {
  const auto size = static_cast<int>(size_of(spec.dtype));
  const int tiles = size * (cut.m * plan.d + cut.stages * cut.n * (plan.d + plan.dv));
  return std::max(tiles, cut.m * plan.dv * static_cast<int>(size_of(spec.out)));
}

ForwardChoice choice_of(const ForwardSpec& spec, const Cut80& cut) {
  ForwardPlan plan = plan_of(spec, std::string(name80), cut.m, cut.n, cut.stages);
  const auto width = static_cast<int>(spec.d), width_v = static_cast<int>(spec.dv);
  plan.traits = {{"warps", cut.warps},  {"width", width},      {"width_v", width_v},
                 {"vector", spec.load}, {"store", spec.store}, {"exact", spec.exact}};
  const int bytes = shared_bytes(spec, plan, cut);
  return {std::move(plan), 32 * cut.warps, bytes, false, false};
}

std::string why_not_sm90(const ForwardSpec& spec, const ForwardFacts& facts) {
  if (spec.arch != 90)
    return fmt::format("it is for compute capability 9.0, and the device has {}.{}", spec.arch / 10, spec.arch % 10);
  if (spec.dtype != DType::bf16 && spec.dtype != DType::f16)
    return fmt::format("its products are of bf16 or f16, and q, k and v hold {}", name_of(spec.dtype));
  if (spec.out != spec.dtype)
    return fmt::format("it writes o as {}, not as {}", name_of(spec.dtype), name_of(spec.out));
  if (!spec.boxes)
    return "the copy engine takes tensors whose rows are contiguous, whose other strides are positive multiples of 16 "
           "bytes, and none of them empty";
  if (facts.has_prob && !facts.linear_prob) return "the prob mod is no multiple of p: it needs each row's sum first";
  if (spec.d > 256 || spec.dv > 256) return "heads are wider than 256";
  return {};
}

/// Bytes of shared memory that a block may have.
int most_shared(int arch) {
  if (arch == 80 || arch == 87) return 163 * 1024;
  return arch >= 90 && arch < 120 ? 227 * 1024 : 99 * 1024;
}

std::string why_too_large(const ForwardSpec& spec, const ForwardChoice& choice) {
  if (choice.shared_bytes <= most_shared(spec.arch)) return {};
  return fmt::format("it takes {} bytes of shared memory, and there are {}", choice.shared_bytes,
                     most_shared(spec.arch));
}

std::string why_illegal(const ForwardSpec& spec, const Cut90& cut) {
  const auto within = [](int value, int least, int most) { return value >= least && value <= most; };
  if (cut.m != 128 && cut.m != 192) return "m is 128 or 192";
  if (!within(cut.n, 16, 256) || cut.n % 16) return "n is a multiple of 16, at most 256";
  if (!within(cut.stages, 2, 4)) return "stages are 2 to 4";
  if (!within(cut.q_stages, 1, 2)) return "q_stages are 1 or 2";
  if (!within(cut.own_o, 0, 1) || !within(cut.dynamic, 0, 1)) return "own_o and dynamic are 0 or 1";
  if (!within(cut.turns, 0, 2)) return "turns are 0, 1 or 2";
  if (!cut.own_o && cut.q_stages == 2) return "results would lie on the next queries: own_o is 1";
  // Of a thread: scores, results and probabilities, beside some 24 (two groups) or 32 registers else.
  const int numbers = cut.n / 2 + rounded_up(spec.dv, 16) / 2 + cut.n / 4, most = cut.m == 128 ? 208 : 128;
  if (numbers > most) return fmt::format("a thread would hold {} numbers, and {} fit its registers", numbers, most);
  return why_too_large(spec, choice_of(spec, cut));
}

std::string why_illegal(const ForwardSpec& spec, const Cut80& cut) {
  if (cut.warps < 1 || cut.warps > 8) return "warps are 1 to 8";
  if (cut.m != 16 * cut.warps && cut.m != 32 * cut.warps) return "m is 16 or 32 times the warps";
  if (cut.n < 16 || cut.n > 128 || cut.n % 16) return "n is a multiple of 16, at most 128";
  if (cut.stages < 1 || cut.stages > 4) return "stages are 1 to 4";
  return why_too_large(spec, choice_of(spec, cut));
}

template <class Cut, std::size_t N>
Variant variant_of(std::string_view kernel, const Cut& cut, const std::array<Member<Cut>, N>& members) {
  Variant out{std::string(kernel), {}};
  for (const Member<Cut>& member : members) out.set(member.name, cut.*member.at);
  return out;
}

/// `usual` with what the variant says; a member that there is not goes to `wrong`.
template <class Cut, std::size_t N>
Cut cut_of(const Variant& variant, Cut usual, const std::array<Member<Cut>, N>& members, std::string& wrong) {
  for (const auto& [name, value] : variant.members) {
    const auto member = std::ranges::find(members, name, &Member<Cut>::name);
    if (member == members.end())
      wrong = fmt::format("{} has no `{}`", variant.kernel, name);
    else
      usual.*(member->at) = value;
  }
  return usual;
}

/// The cuts of kernels.def for a call, in the order to try.
std::vector<Cut90> cuts90(const ForwardSpec& spec, const ForwardFacts& facts, const ForwardKind& kind) {
  const auto wide = [&](const Sm90& row) { return row.d >= spec.d && row.dv >= spec.dv; };
  const auto narrowest = std::ranges::find_if(sm90, wide);
  std::vector<Cut90> out;
  for (auto row = narrowest; row != sm90.end() && row->d == narrowest->d && row->dv == narrowest->dv; ++row) {
    Cut90 cut = row->cut;
    cut.dynamic = facts.masked || spec.packed;  // tiles of equal length are dealt out evenly
    // How groups take turns makes no difference to what spills.
    const auto alike = [&](Cut90 other) {
      other.turns = cut.turns;
      return other == cut;
    };
    if (row->is_for(kind) && std::ranges::none_of(out, alike)) out.push_back(cut);
  }
  return out;
}

std::vector<Cut80> cuts80(const ForwardSpec& spec) {
  const auto bytes = static_cast<int>(size_of(spec.dtype));
  const auto narrowest = std::ranges::find_if(
      sm80, [&](const Sm80& row) { return row.bytes == bytes && row.d >= std::max(spec.d, spec.dv); });
  std::vector<Cut80> out;
  for (auto row = narrowest; row != sm80.end() && row->bytes == narrowest->bytes && row->d == narrowest->d; ++row)
    out.push_back(row->cut);
  return out;
}

struct Wanted {
  std::optional<ForwardChoice> choice;
  std::string why;  ///< there is none
};

Wanted wanted(const ForwardSpec& spec, const ForwardFacts& facts, const ForwardKind& kind, const Variant& variant) {
  std::string wrong;
  if (variant.kernel == name90) {
    if (wrong = why_not_sm90(spec, facts); !wrong.empty()) return {{}, wrong};
    const Cut90 cut = cut_of(variant, cuts90(spec, facts, kind).front(), members90, wrong);
    if (wrong.empty()) wrong = why_illegal(spec, cut);
    if (wrong.empty()) return {choice_of(spec, cut), {}};
  } else if (variant.kernel == name80) {
    const Cut80 cut = cut_of(variant, cuts80(spec).front(), members80, wrong);
    if (wrong.empty()) wrong = why_illegal(spec, cut);
    if (wrong.empty()) return {choice_of(spec, cut), {}};
  } else {
    wrong = fmt::format("there are {} and {}", name90, name80);
  }
  return {{}, wrong};
}

/// Those of `values` for each member in turn, where that is legal and new.
template <class Cut, std::size_t N>
std::vector<Variant> changed(const ForwardSpec& spec, const Variant& from, const std::array<Member<Cut>, N>& members,
                             std::initializer_list<std::pair<std::string_view, std::vector<int>>> values) {
  std::vector<Variant> out;
  for (const auto& [name, list] : values)
    for (const int value : list) {
      Variant other = from;
      other.set(name, value);
      std::string wrong;
      const Cut cut = cut_of(other, Cut{}, members, wrong);
      if (other != from && wrong.empty() && why_illegal(spec, cut).empty()) out.push_back(other);
    }
  return out;
}

}  // namespace

int trait(const ForwardPlan& plan, std::string_view name) {
  for (const auto& [key, value] : plan.traits)
    if (key == name) return value;
  return 0;
}

int heads_to_share(std::int64_t q_len, std::int64_t group) {
  constexpr std::int64_t half_a_tile = 64, most = 8;
  if (q_len > half_a_tile || group < 2) return 1;
  return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::min(group, most))));
}

ForwardChoices choose(const ForwardSpec& wishes, const ForwardFacts& facts, const ForwardKind& kind,
                      const Preference* preference) {
  ForwardSpec spec = wishes;
  if (!facts.shares_tiles) spec.heads = 1;
  if (spec.arch < 80)
    throw Error("engine-arch", "the device is too old for the CUDA engine", {},
                fmt::format("it has compute capability {}.{}, and kernels need 8.0", spec.arch / 10, spec.arch % 10),
                "compute on another device, or on the host");
  if (size_of(spec.dtype) == 8)
    throw Error("engine-type", "the CUDA engine computes in f32", {}, "q, k and v hold f64",
                "convert them to f32, or choose .target = Target::oracle on the host");
  if (spec.d > 256 || spec.dv > 256)
    throw Error("engine-width", "heads are too wide for the CUDA engine", {},
                fmt::format("D is {} and Dv is {}, and kernels take up to 256", spec.d, spec.dv),
                "split the heads, or compute on the host");
  ForwardChoices out;
  if (preference) {
    Wanted first = wanted(spec, facts, kind, preference->variant);
    if (!first.choice && preference->only)
      throw Error("bad-kernel", "the kernel that is asked for cannot take this call",
                  {.name = preference->variant.text()}, first.why, "name another, or leave the choice to attune");
    if (first.choice) out.choices.push_back(std::move(*first.choice));
    if (preference->only) return out;
    if (!first.why.empty()) out.refused = fmt::format("not {}: {}", preference->variant.text(), first.why);
  }
  const std::string why = why_not_sm90(spec, facts);
  if (why.empty())
    for (const Cut90& cut : cuts90(spec, facts, kind)) out.choices.push_back(choice_of(spec, cut));
  else
    out.story = "not forward_sm90: " + why;
  for (const Cut80& cut : cuts80(spec)) out.choices.push_back(choice_of(spec, cut));
  return out;
}

Variant variant_of(const ForwardPlan& plan) {
  Variant out{plan.kernel, {{"m", plan.m}, {"n", plan.n}, {"stages", plan.stages}}};
  const auto add = [&](const auto& members) {
    for (const auto& member : members)
      if (!out.of(member.name)) out.set(member.name, trait(plan, member.name));
  };
  plan.kernel == name90 ? add(members90) : add(members80);
  return out;
}

std::vector<Variant> other_tiles(const ForwardSpec& spec, const ForwardFacts& facts, const Variant& from) {
  std::vector<Variant> out;
  const auto add = [&](const Variant& other, const std::string& why) {
    if (why.empty() && other != from) out.push_back(other);
    return why.empty();
  };
  std::string wrong;
  if (from.kernel == name90) {
    if (!why_not_sm90(spec, facts).empty()) return {};
    for (const int m : {128, 192})
      for (int n = 48; n <= 256; n += 16) {
        Cut90 cut = cut_of(from, Cut90{}, members90, wrong);
        cut.m = m;
        cut.n = n;
        // What needs no second queries may need no memory for results either: in this order shared memory shrinks.
        for (const auto& [q_stages, own_o] : {std::pair{2, 1}, {1, 1}, {1, 0}}) {
          if (q_stages > cut.q_stages || own_o > cut.own_o) continue;
          Cut90 other = cut;
          other.q_stages = q_stages;
          other.own_o = own_o;
          if (add(variant_of(name90, other, members90), why_illegal(spec, other))) break;
        }
      }
    return out;
  }
  for (const int warps : {4, 8})
    for (const int rows : {16, 32})
      for (int n = 16; n <= 128; n += 16) {
        Cut80 cut = cut_of(from, Cut80{}, members80, wrong);
        cut.warps = warps;
        cut.m = rows * warps;
        cut.n = n;
        add(variant_of(name80, cut, members80), why_illegal(spec, cut));
      }
  return out;
}

std::vector<Variant> other_ways(const ForwardSpec& spec, const ForwardFacts& facts, const Variant& from) {
  if (from.kernel == name80) return changed(spec, from, members80, {{"stages", {1, 2, 3}}});
  if (!why_not_sm90(spec, facts).empty()) return {};
  return changed(
      spec, from, members90,
      {{"turns", {0, 1, 2}}, {"dynamic", {0, 1}}, {"q_stages", {1, 2}}, {"own_o", {0, 1}}, {"stages", {2, 3}}});
}

}  // namespace attune::codegen
