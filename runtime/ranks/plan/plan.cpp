// runtime/ranks/plan/plan.cpp — the plan of Shares: who holds what, and for each mask what travels by which schedule
#include "runtime/ranks/plan/plan.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/parts.h"
#include "runtime/engines/picture/counts.h"
#include "runtime/machine/placed.h"
#include "runtime/machine/tensor.h"
#include "runtime/ranks/plan/digester.h"
#include "runtime/ranks/transport/transport.h"

namespace attune {
namespace runtime::ranks {
namespace {

/// The elements of a tensor on the host, in logical order.
std::vector<std::byte> contents(const Tensor& t) {
  const std::size_t size = size_of(t.dtype);
  std::vector<std::byte> out(static_cast<std::size_t>(t.size()) * size);
  std::byte* into = out.data();
  Tensor::Extents at{};
  for (std::int64_t i = 0; i < t.size(); ++i, into += size) {
    std::int64_t rest = i, offset = 0;
    for (int d = t.rank; d-- > 0;) {
      const auto dim = static_cast<std::size_t>(d);
      at[dim] = rest % t.shape[dim];
      rest /= t.shape[dim];
      offset += at[dim] * t.strides[dim];
    }
    std::memcpy(into, static_cast<const std::byte*>(t.data) + offset * static_cast<std::int64_t>(size), size);
  }
  return out;
}

bool contiguous(const Tensor& t) {
  std::int64_t expected = 1;
  for (int d = t.rank; d-- > 0;) {
    const auto dim = static_cast<std::size_t>(d);
    if (t.shape[dim] != 1 && t.strides[dim] != expected) return false;
    expected *= t.shape[dim];
  }
  return true;
}

Error refuse_call(std::string what, std::string why, std::string fix) {
  return {"shares-call", fmt::format("calls over ranks do not take {}", what), {}, std::move(why), std::move(fix)};
}

/// The sizes of the whole call. Its tensors may have no memory, and need not be where a rank's are.
compiler::Problem whole_problem(const Forward& whole) {
  if (const std::string_view what = not_over_ranks(whole); !what.empty())
    throw refuse_call(std::string(what), "Shares are made for a call that has it", "leave it out");
  Forward call{.q = whole.q,
               .k = whole.k,
               .v = whole.v,
               .cu_seqlens_q = whole.cu_seqlens_q,
               .cu_seqlens_kv = whole.cu_seqlens_kv,
               .q_offset = whole.q_offset,
               .kv_offset = whole.kv_offset,
               .max_q_len = whole.max_q_len,
               .max_kv_len = whole.max_kv_len};
  for (const Tensor* cu : {&call.cu_seqlens_q, &call.cu_seqlens_kv})
    if (cu->given() && cu->device.kind != Device::Kind::cpu)
      throw refuse_call("cu_seqlens on a device", "who holds which positions is planned on the host",
                        "pass a copy on the host");
  if (call.q.given() && call.v.given() && call.q.rank > 0 && call.v.rank > 0) {
    const auto rank = static_cast<std::size_t>(call.q.rank);
    Tensor::Extents shape = call.q.shape;
    shape[rank - 1] = call.v.shape[static_cast<std::size_t>(call.v.rank) - 1];
    call.o = Tensor(nullptr, call.q.dtype, std::span(shape).first(rank));
  }
  // Addresses that nothing reads.
  std::uintptr_t address = 64;
  for (Tensor* t : {&call.q, &call.k, &call.v, &call.o}) {
    t->data = reinterpret_cast<void*>(address += 64);
    t->device = {};
  }
  return compiler::check(compiler::BoundMod{}, call, {});
}

Sizes sizes_of(const compiler::Problem& p, DType type) {
  return {.batch = p.q.packed() ? 1 : p.batch,
          .kv_batch = p.q.packed() || p.kv_shared ? 1 : p.batch,
          .q_heads = p.q_heads,
          .kv_heads = p.kv_heads,
          .d = p.d,
          .dv = p.dv,
          .element = static_cast<std::int64_t>(size_of(type))};
}

void check_how(const How& how) {
  const auto refuse = [](std::string what, std::string why, std::string fix) {
    return Error("shares-how", std::move(what), {}, std::move(why), std::move(fix));
  };
  if (how.grain < 1)
    throw refuse(fmt::format("a grain has {} positions", how.grain), "positions are dealt in grains", "pass 384");
  if (how.groups < 0)
    throw refuse(fmt::format("there are {} groups of key heads", how.groups), "keys travel in one group or more",
                 "pass 0 for the best, or a divisor of the key heads");
  for (const auto& [name, value] : {std::pair{"own_gb_s", how.own_gb_s},
                                    {"node_gb_s", how.node_gb_s},
                                    {"tflops", how.tflops},
                                    {"memory_gb_s", how.memory_gb_s}})
    if (!(value > 0))
      throw refuse(fmt::format("{} is {}", name, value), "times are predicted by it", "pass a rate above 0");
  if (how.per_node < 1)
    throw refuse(fmt::format("a node has {} ranks", how.per_node), "times are predicted by it", "pass 1 or more");
}

void check_layers(std::span<const Attention> attentions, std::span<const Forward> wholes) {
  if (attentions.empty())
    throw Error("shares-call", "Shares are made for no attention", {}, "who needs which keys follows from masks",
                "pass the attentions of the calls");
  if (attentions.size() != wholes.size())
    throw Error("shares-call",
                fmt::format("Shares are made for {} attentions and {} calls", attentions.size(), wholes.size()), {},
                "each call is of one attention", "pass a call for each");
}

std::vector<std::vector<Shares::Stretch>> stretches(const Axis& axis, std::span<const int> owners, int ranks) {
  std::vector<std::vector<Shares::Stretch>> out(static_cast<std::size_t>(ranks));
  for (std::size_t g = 0; g < owners.size(); ++g) {
    const Grain& grain = axis.grains[g];
    auto& mine = out[static_cast<std::size_t>(owners[g])];
    if (!mine.empty() && mine.back().end == grain.row)
      mine.back().end += grain.rows();
    else
      mine.push_back({grain.row, grain.row + grain.rows()});
  }
  return out;
}

std::int64_t rows_in(std::span<const Shares::Stretch> stretches) {
  std::int64_t rows = 0;
  for (const Shares::Stretch& s : stretches) rows += s.end - s.begin;
  return rows;
}

}  // namespace

std::string_view not_over_ranks(const Forward& call) {
  if (call.kv_len.given()) return "kv_len";
  if (call.k.dtype != call.q.dtype) return "keys of another type than q";
  if (call.q_offsets.given()) return "q_offsets";
  if (call.pages.given()) return "pages";
  if (call.piece != 0) return "piece";
  if (call.o_before.given() || call.lse_before.given()) return "o_before";
  if (call.cu_seqlens_q.given() != call.cu_seqlens_kv.given()) return "cu_seqlens_q without cu_seqlens_kv";
  return {};
}

MaskOf mask_of(const compiler::LoweredMod& lowered, const compiler::Args& args) {
  const compiler::CoverOf of = compiler::cover_of(lowered.cover);
  Digester data;
  for (const std::uint32_t slot : of.captures) {
    const Tensor& t = args.captures[slot];
    if (t.device.kind != Device::Kind::cpu)
      throw Error("shares-capture",
                  fmt::format("the mask reads `{}`, which is on a device", lowered.mod.captures[slot].name), {},
                  fmt::format("it is {}, and who needs which keys is worked out on the host", t.describe()),
                  "make Shares of an attention that captures a copy on the host");
    data.add(static_cast<std::int64_t>(t.dtype));
    data.add(std::int64_t{t.rank});
    for (int d = 0; d < t.rank; ++d) data.add(t.shape[static_cast<std::size_t>(d)]);
    if (contiguous(t))
      data.add({static_cast<const std::byte*>(t.data), static_cast<std::size_t>(t.size()) * size_of(t.dtype)});
    else
      data.add(contents(t));
  }
  for (const std::uint32_t slot : of.params) data.add(args.params[slot]);
  return {of.mask, data.digest()};
}

}  // namespace runtime::ranks

namespace detail {

using namespace runtime::ranks;

Ranks::Ranks(std::span<const Attention> attentions, std::span<const Forward> wholes, Transport with, const How& asked,
             const Ranks* before)
    : transport(std::move(with)), how(asked),
      problem((check_how(asked), check_layers(attentions, wholes), whole_problem(wholes.front()))),
      sizes(sizes_of(problem, wholes.front().q.dtype)), dtype(wholes.front().q.dtype),
      q(problem.q, problem.batch, asked.grain), kv(problem.kv, problem.batch, asked.grain) {
  if (transport.count < 1 || transport.rank < 0 || transport.rank >= transport.count)
    throw Error("ranks-count", fmt::format("this is rank {} of {}", transport.rank, transport.count), {},
                "ranks are numbered from 0", "pass a transport of this rank");
  check_count(transport.count);
  together = q == kv && problem.q_offset == problem.kv_offset;
  if (before && (before->q != q || before->kv != kv || before->together != together))
    throw Error("shares-other", "these Shares are of other lengths", {},
                fmt::format("they deal {} queries and {} keys, and the call has {} and {}", before->q.rows,
                            before->kv.rows, q.rows, kv.rows),
                "make Shares of their own for other lengths");

  std::vector<Work> work;
  std::vector<bool> linear;
  for (std::size_t i = 0; i < attentions.size(); ++i) {
    const compiler::LoweredMod lowered = compiler::lower(attentions[i]);
    const Forward& whole = wholes[i];
    std::vector<Tensor> captures;
    compiler::check_bound(lowered, whole.captures, whole.params);
    if (!whole.captures.empty()) captures = compiler::filled(lowered.slots, whole.captures);
    const compiler::Args args = compiler::args(lowered, captures, whole.params);
    layers.push_back({.mask = mask_of(lowered, args), .work = {}, .schedules = {}, .needs = {}});
    linear.push_back(codegen::linear_in_p(lowered.mod.prob));
    work.push_back(work_of(lowered, args, problem, q, kv, how.grain));
  }
  choose(work, linear, before);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].work = std::move(work[i]);
    layers[i].needs.emplace(layers[i].work, dealt(), count(), problem.kv_shared);
  }
  q_of = stretches(q, dealt().q, count());
  kv_of = stretches(kv, dealt().kv, count());
  digest = digest_of_plan();
  runtime::ranks::compare(transport, digest, "their Shares", nullptr);
}

namespace {

/// Weights of greedy deals. Causal masks want little, many short documents much: simulated with 4 to 64 ranks.
constexpr std::array greedy_weights{0.35, 0.7, 1.4, 2.8, 5.6, 11.2};
/// A schedule that gives other bits than one rank does must be so many times as fast as one that gives the same.
constexpr double merging_gain = 2;
bool merges(Travel travel) { return travel == Travel::ring || travel == Travel::few; }
/// Of greedy deals that are nearly as fast as the fastest, the one that moves least is taken: times are predictions.
constexpr double nearly = 1.02;
/// Nor may its work be much less even: all-to-all takes any deal, and would hide that.
constexpr double nearly_even = 0.08;

}  // namespace

Ranks::Considered Ranks::consider(Deal deal, std::vector<int> q_owners, std::span<const Work> work,
                                  const std::vector<bool>& linear) const {
  Considered out;
  Candidate& c = out.candidate;
  c.deal = deal;
  c.dealt.kv = together ? q_owners : contiguous(kv, count());
  c.dealt.q = std::move(q_owners);
  std::vector<double> load(static_cast<std::size_t>(count()));
  for (std::size_t i = 0; i < work.size(); ++i) {
    out.schedules.push_back(schedules(work[i], c.dealt, linear[i]));
    c.ms += out.schedules.back().front().ms;
    c.gather += share_of_gather(work[i], c.dealt) / static_cast<double>(work.size());
    for (std::size_t g = 0; g < c.dealt.q.size(); ++g) load[static_cast<std::size_t>(c.dealt.q[g])] += work[i].pairs[g];
  }
  double most = 0, sum = 0;
  for (const double one : load) most = std::max(most, one), sum += one;
  c.load = sum > 0 ? most * count() / sum : 1;
  return out;
}

void Ranks::choose(std::span<const Work> work, const std::vector<bool>& linear, const Ranks* before) {
  const int ranks = count();
  // Whole positions travel to heads, so that nothing needs balancing.
  const bool any = !before && how.deal == Deal::best && how.travel != Travel::heads;
  const auto considered = [&](Deal deal) { return any || (!before && how.deal == deal); };
  std::vector<Considered> all;
  if (before) all.push_back(consider(before->candidates.front().deal, before->dealt().q, work, linear));
  if (considered(Deal::contiguous) || (!before && how.deal == Deal::best))
    all.push_back(consider(Deal::contiguous, contiguous(q, ranks), work, linear));
  if (considered(Deal::zigzag))
    all.push_back(consider(Deal::zigzag, zigzag(q, ranks, problem.q.packed()), work, linear));
  if (considered(Deal::greedy)) {
    std::vector<Considered> greedies;
    for (const double weight : greedy_weights)
      greedies.push_back(consider(Deal::greedy, greedy(q, kv, work, ranks, together, weight), work, linear));
    const auto ms = [](const Considered& c) { return c.candidate.ms; };
    const auto load = [](const Considered& c) { return c.candidate.load; };
    const double evenest = load(*std::ranges::min_element(greedies, {}, load));
    std::erase_if(greedies, [&](const Considered& c) { return load(c) > evenest + nearly_even; });
    const double fastest = ms(*std::ranges::min_element(greedies, {}, ms));
    std::erase_if(greedies, [&](const Considered& c) { return ms(c) > fastest * nearly; });
    all.push_back(*std::ranges::min_element(greedies, {}, [](const Considered& c) { return c.candidate.gather; }));
  }
  // A deal must be better by a thousandth to be taken instead of a simpler one.
  std::size_t best = 0;
  for (std::size_t i = 1; i < all.size(); ++i)
    if (all[i].candidate.ms < all[best].candidate.ms * 0.999) best = i;
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(best),
              all.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].schedules = std::move(all.front().schedules[i]);
  for (Considered& c : all) candidates.push_back(std::move(c.candidate));
}

std::vector<Predicted> Ranks::schedules(const Work& work, const Dealt& dealt, bool linear) const {
  std::vector<Predicted> out;
  const auto add = [&](Travel travel, int groups) {
    if (how.travel != Travel::best && how.travel != travel) return;
    out.push_back(predict(sizes, q, kv, work, dealt, count(), how, travel, groups));
    if (!linear && (travel == Travel::ring || travel == Travel::few))
      out.back().why_not = "the prob mod is no multiple of p, so that parts cannot be merged";
  };
  if (how.groups > 0 && sizes.kv_heads % how.groups != 0)
    throw Error("shares-how", fmt::format("{} key heads cannot travel in {} groups", sizes.kv_heads, how.groups), {},
                "groups have the same number of heads", "pass a divisor of the key heads, or 0 for the best");
  for (const int groups : how.groups > 0 ? std::vector<int>{how.groups} : groups_of(sizes.kv_heads))
    add(Travel::gather, groups);
  add(Travel::heads, 1);
  add(Travel::ring, 1);
  add(Travel::few, 1);
  std::stable_sort(out.begin(), out.end(), [](const Predicted& a, const Predicted& b) {
    if (a.why_not.empty() != b.why_not.empty()) return a.why_not.empty();
    return a.why_not.empty() && a.ms < b.ms;
  });
  const auto exact = std::ranges::find_if(out,
                                          [](const Predicted& p) { return p.why_not.empty() && !merges(p.travel); });
  if (exact != out.end() && exact->ms < out.front().ms * merging_gain) std::rotate(out.begin(), exact, exact + 1);
  if (!out.front().why_not.empty())
    throw Error("shares-how", fmt::format("{} cannot be taken", name_of(how.travel)), {}, out.front().why_not,
                "leave the choice: Travel::best");
  return out;
}

double Ranks::share_of_gather(const Work& work, const Dealt& dealt) const {
  const Needs needs(work, dealt, count(), problem.kv_shared);
  double share = 0;
  for (int r = 0; r < count(); ++r) {
    double received = 0, all = 0;
    for (std::size_t t = 0; t < needs.tables(); ++t)
      for (std::size_t g = 0; g < kv.grains.size(); ++g) {
        const auto rows = static_cast<double>(kv.grains[g].rows());
        if (dealt.kv[g] == r) continue;
        all += rows;
        if (needs.of(t, r).has(g)) received += rows;
      }
    if (all > 0) share += received / all;
  }
  return share / count();
}

ir::Digest Ranks::digest_of_plan() const {
  Digester d;
  for (const std::int64_t n :
       {std::int64_t{count()}, problem.batch, problem.q_heads, problem.kv_heads, problem.d, problem.dv, q.rows, kv.rows,
        std::int64_t{problem.q_offset}, std::int64_t{problem.kv_offset}, static_cast<std::int64_t>(dtype), how.grain})
    d.add(n);
  for (const Axis* axis : {&q, &kv}) d.add(std::as_bytes(std::span(axis->grains)));
  d.add(std::as_bytes(std::span(dealt().q)));
  d.add(std::as_bytes(std::span(dealt().kv)));
  for (const Layer& layer : layers) {
    d.add(layer.mask.mask);
    d.add(layer.mask.data);
    d.add(static_cast<std::int64_t>(layer.chosen().travel));
    d.add(std::int64_t{layer.chosen().groups});
  }
  return d.digest();
}

std::int64_t Ranks::q_rows(int rank) const { return rows_in(q_of[static_cast<std::size_t>(rank)]); }
std::int64_t Ranks::kv_rows(int rank) const { return rows_in(kv_of[static_cast<std::size_t>(rank)]); }

double Ranks::received(int rank, std::size_t layer) const {
  const Layer& of = layers.at(layer);
  const Predicted& chosen = of.chosen();
  if (chosen.travel != Travel::gather) return chosen.ranks[static_cast<std::size_t>(rank)].received();
  double rows = 0;
  for (std::size_t t = 0; t < of.needs->tables(); ++t)
    for (std::size_t g = 0; g < kv.grains.size(); ++g)
      if (dealt().kv[g] != rank && of.needs->of(t, rank).has(g)) rows += static_cast<double>(kv.grains[g].rows());
  return rows * static_cast<double>(sizes.kv_batch * sizes.kv_heads * (sizes.d + sizes.dv) * sizes.element) /
         static_cast<double>(of.needs->tables());
}

std::string Ranks::explain() const {
  using runtime::grouped;
  std::string out = fmt::format("{} ranks, {} queries, {} keys, {}/{} heads of {}/{}, {}\n", count(), grouped(q.rows),
                                grouped(kv.rows), sizes.q_heads, sizes.kv_heads, sizes.d, sizes.dv, name_of(dtype));
  out += fmt::format("grains of {}: {} of queries, {} of keys\n", how.grain, q.grains.size(), kv.grains.size());
  out += "\ndeals             load   moved   predicted\n";
  for (const Candidate& c : candidates)
    out += fmt::format("  {:<12}{:>9.3f}{:>7.1f}%  {:>10}{}\n", name_of(c.deal), c.load, 100 * c.gather,
                       milliseconds(c.ms), &c == &candidates.front() ? "   taken" : "");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    out += layers.size() > 1 ? fmt::format("\nschedules of layer {}    predicted   of ideal   received\n", i)
                             : "\nschedules             predicted   of ideal   received\n";
    for (const Predicted& p : layers[i].schedules) {
      const std::string name = p.travel == Travel::gather
                                   ? fmt::format("gather, {} group{}", p.groups, p.groups > 1 ? "s" : "")
                                   : std::string(name_of(p.travel));
      if (!p.why_not.empty()) {
        out += fmt::format("  {:<20}not here: {}\n", name, p.why_not);
        continue;
      }
      double most = 0;
      for (const RankTimes& r : p.ranks) most = std::max(most, r.received());
      out += fmt::format("  {:<20}{:>11}{:>9.1f}%  {:>6.0f} MB{}\n", name, milliseconds(p.ms),
                         p.ms > 0 ? 100 * p.ideal / p.ms : 100, most / 1e6,
                         &p == &layers[i].chosen() ? "   taken" : "");
    }
  }
  return out;
}

}  // namespace detail

Shares::Shares(std::span<const Attention> layers, const Forward& whole, Transport with, Line at)
    : Shares(layers, whole, std::move(with), How{}, at) {}
Shares::Shares(std::span<const Attention> layers, const Forward& whole, Transport with, How how, Line at)
    : ranks_(runtime::placed(at, [&] {
        const std::vector<Forward> wholes(std::max<std::size_t>(layers.size(), 1), whole);
        return std::make_shared<detail::Ranks>(layers, wholes, std::move(with), how, nullptr);
      })) {}
Shares::Shares(std::span<const Attention> layers, std::span<const Forward> wholes, Transport with, How how, Line at)
    : ranks_(runtime::placed(
          at, [&] { return std::make_shared<detail::Ranks>(layers, wholes, std::move(with), how, nullptr); })) {}
Shares::Shares(const Shares& dealt, std::span<const Attention> layers, std::span<const Forward> wholes, Line at)
    : ranks_(runtime::placed(at, [&] {
        if (!dealt)
          throw Error("ranks-count", "these Shares are empty", {}, "a default Shares holds no deal",
                      "make them of the attentions, the whole call and a transport");
        return std::make_shared<detail::Ranks>(layers, wholes, dealt.get()->transport, dealt.get()->how, dealt.get());
      })) {}

namespace {

const detail::Ranks& ranks_of(const detail::Ranks* ranks, int rank) {
  if (!ranks)
    throw Error("ranks-count", "these Shares are empty", {}, "a default Shares holds no plan",
                "make them of the attentions, the whole call and a transport");
  if (rank < 0 || rank >= ranks->count())
    throw Error("ranks-count", fmt::format("there is no rank {}", rank), {},
                fmt::format("ranks are 0 to {}", ranks->count() - 1), "pass one of them");
  return *ranks;
}

}  // namespace

std::span<const Shares::Stretch> Shares::of(int rank) const {
  return ranks_of(get(), rank).q_of[static_cast<std::size_t>(rank)];
}
std::span<const Shares::Stretch> Shares::keys_of(int rank) const {
  return ranks_of(get(), rank).kv_of[static_cast<std::size_t>(rank)];
}

Array<int> Shares::positions(int rank) const {
  const detail::Ranks& all = ranks_of(get(), rank);
  auto out = Device::cpu().array<int>({all.q_rows(rank)}, "positions");
  std::size_t at = 0;
  for (std::size_t g = 0; g < all.q.grains.size(); ++g)
    if (all.dealt().q[g] == rank)
      for (std::int64_t i = all.q.grains[g].first; i < all.q.grains[g].last; ++i)
        out.values()[at++] = all.problem.q_offset + static_cast<int>(i);
  return out;
}

std::size_t Shares::received(int rank, std::size_t layer) const {
  const detail::Ranks& all = ranks_of(get(), rank);
  if (layer >= all.layers.size())
    throw Error("ranks-count", fmt::format("there is no layer {}", layer), {},
                fmt::format("these Shares were made of {} attentions", all.layers.size()), "count from 0");
  return static_cast<std::size_t>(all.received(rank, layer));
}

std::string Shares::explain() const { return ranks_of(get(), 0).explain(); }

}  // namespace attune
