// runtime/ranks/plan/predict.cpp — predicts the bytes that each schedule moves and its time, on a machine of given
// rates
#include "runtime/ranks/plan/predict.h"

#include <algorithm>

#include <fmt/format.h>

namespace attune::runtime::ranks {
namespace {

/// The cost of starting and draining a launch, in addition to its work, ms. On two H100s, 2 to 5 ranges of queries in 4
/// to 8 groups took 0.01 to 0.04 ms more for each launch.
constexpr double launch_ms = 0.015;
/// The rate of copies within a device, which move a rank's own keys to their places: 1270 GB/s on an H100.
constexpr double within_gb_s = 1200;

double rate(double gb_s) { return gb_s * 1e6; }  // bytes per ms

class Predictor {
 public:
  Predictor(const Setting& setting, const Work& work, const Owners& owners)
      : s_(setting.sizes), kv_(setting.kv), owners_(owners), ranks_(setting.ranks), how_(setting.how),
        needs_(work, owners, setting.ranks, setting.sizes.kv_shared()) {
    const Axis& q = setting.q;
    pairs_.resize(count());
    rows_.resize(count());
    ranges_.resize(count());
    for (std::size_t g = 0; g < q.blocks.size(); ++g) {
      if (g == 0 || owners.q[g] != owners.q[g - 1]) ++ranges_[at(owners.q[g])];
      pairs_[at(owners.q[g])] += work.pairs[g];
      rows_[at(owners.q[g])] += q.blocks[g].rows();
      all_pairs_ += work.pairs[g];
    }
  }

  Predicted operator()(Travel travel, int groups) {
    Predicted out{.travel = travel, .groups = groups, .why_not = {}, .ranks = std::vector<RankTimes>(count())};
    out.ideal = std::max(flops_ms(all_pairs_), memory_ms(all_keys())) / ranks_;
    switch (travel) {
      case Travel::best:
      case Travel::gather: gather(out); break;
      case Travel::ring: ring(out); break;
      case Travel::heads: heads(out); break;
      case Travel::decode: decode(out); break;
    }
    for (const RankTimes& r : out.ranks)
      for (const auto* bars : {&r.travels, &r.computes})
        if (!bars->empty()) out.ms = std::max(out.ms, bars->back().end);
    return out;
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::size_t count() const { return static_cast<std::size_t>(ranks_); }
  int node(int rank) const { return rank / std::max(1, how_.per_node); }
  double latency() const { return how_.latency_us / 1e3; }
  double flops_ms(double pairs) const { return pairs * 2 * static_cast<double>(s_.d + s_.dv) / (how_.tflops * 1e9); }
  double memory_ms(double bytes) const { return bytes / rate(how_.memory_gb_s); }
  /// Bytes of a key and its value, of one head.
  double key_bytes() const { return static_cast<double>((s_.d + s_.dv) * s_.element); }
  double q_bytes() const { return static_cast<double>(s_.d * s_.element); }
  double o_bytes() const { return static_cast<double>(s_.dv * s_.element); }
  double parts_of_heads() const { return static_cast<double>(s_.batch * s_.q_heads); }
  /// The number of (entry, head) pairs of keys that one table of needs stands for.
  double copies() const {
    return static_cast<double>(s_.kv_batch * s_.kv_heads) / static_cast<double>(needs_.tables());
  }

  /// Bytes of the keys that at least one rank needs.
  double all_keys() const {
    double rows = 0;
    for (std::size_t t = 0; t < needs_.tables(); ++t)
      for (std::size_t g = 0; g < kv_.blocks.size(); ++g) {
        bool needed = false;
        for (int r = 0; r < ranks_; ++r) needed = needed || needs_.of(t, r).has(g);
        if (needed) rows += static_cast<double>(kv_.blocks[g].rows());
      }
    return rows * copies() * key_bytes();
  }

  /// Bytes into each rank. A block that several ranks of a node need is sent to the node once, and then passed on
  /// within the node.
  struct Into {
    double own = 0, across = 0;
    double out = 0;  ///< from this rank to others
  };
  double ms(const Into& into) const {
    const bool any = into.own + into.across + into.out > 0;
    return (any ? latency() : 0) + std::max({(into.own + into.across) / rate(how_.own_gb_s),
                                             into.across / rate(how_.node_gb_s), into.out / rate(how_.own_gb_s)});
  }

  std::vector<Into> gathered() const {
    std::vector<Into> into(count());
    const int nodes = node(ranks_ - 1) + 1;
    const double each = copies() * key_bytes();
    for (std::size_t t = 0; t < needs_.tables(); ++t)
      for (std::size_t g = 0; g < kv_.blocks.size(); ++g) {
        const int owner = owners_.kv[g];
        const double bytes = static_cast<double>(kv_.blocks[g].rows()) * each;
        for (int n = 0; n < nodes; ++n) {
          const int first = n * std::max(1, how_.per_node), last = std::min(ranks_, first + std::max(1, how_.per_node));
          int wanting = 0;
          for (int r = first; r < last; ++r) wanting += r != owner && needs_.of(t, r).has(g);
          if (wanting == 0) continue;
          for (int r = first; r < last; ++r)
            if (r != owner && needs_.of(t, r).has(g)) into[at(r)].own += bytes;
          if (n == node(owner)) {
            into[at(owner)].out += bytes * wanting;
          } else {
            // Each rank of the node receives its part from the other node.
            into[at(owner)].out += bytes;
            for (int r = first; r < last; ++r) into[at(r)].across += bytes / (last - first);
          }
        }
      }
    // Bytes from other nodes count in `across`; the rest of the needed bytes is passed on within the node.
    for (Into& i : into) i.own = std::max(0.0, i.own - i.across);
    return into;
  }

  void gather(Predicted& out) {
    const std::vector<Into> into = gathered();
    for (int r = 0; r < ranks_; ++r) {
      RankTimes& times = out.ranks[at(r)];
      times.own = into[at(r)].own;
      times.across = into[at(r)].across;
      const double launches = launch_ms * std::max(ranges_[at(r)], 1),
                   compute = attend(r, keys_held(r)) / out.groups + launches;
      Into part = into[at(r)];
      for (double* bytes : {&part.own, &part.across, &part.out}) *bytes /= out.groups;
      const double within = std::max(keys_held(r) - times.received(), 0.0) / out.groups / rate(within_gb_s);
      // There are two buffers: the keys of group g + 2 travel once group g is computed.
      double travelled = 0, computed = 0, before = 0;
      for (int g = 0; g < out.groups; ++g) {
        const double begin = g < 2 ? travelled : std::max(travelled, before);
        travelled = begin + std::max(ms(part) - (g > 0 ? latency() : 0), within);
        times.travels.push_back({begin, travelled});
        before = computed;
        const double start = std::max(travelled, computed);
        computed = start + compute;
        times.computes.push_back({start, computed});
      }
      times.compute = compute * out.groups;
    }
  }

  /// Bytes of the keys that the rank's queries read.
  double keys_held(int rank) const {
    double rows = 0;
    for (std::size_t t = 0; t < needs_.tables(); ++t)
      for (std::size_t g = 0; g < kv_.blocks.size(); ++g)
        if (needs_.of(t, rank).has(g)) rows += static_cast<double>(kv_.blocks[g].rows());
    return rows * copies() * key_bytes();
  }
  /// The time of a rank's queries over keys of `bytes` bytes: the products, or reading memory if there are few queries.
  double attend(int rank, double bytes) const {
    return std::max(flops_ms(pairs_[at(rank)]), memory_ms(bytes + static_cast<double>(rows_[at(rank)]) *
                                                                      parts_of_heads() * (q_bytes() + o_bytes())));
  }

  /// Rows of the blocks of keys that the rank needs from each owner, over all tables.
  std::vector<double> rows_by_owner(int rank) const {
    std::vector<double> rows(count());
    for (std::size_t t = 0; t < needs_.tables(); ++t)
      for (std::size_t g = 0; g < kv_.blocks.size(); ++g)
        if (needs_.of(t, rank).has(g)) rows[at(owners_.kv[g])] += static_cast<double>(kv_.blocks[g].rows());
    return rows;
  }

  /// Step s computes with the keys of rank r + s, while the keys of rank r + s + 1 travel. Each rank waits only for the
  /// owner.
  void ring(Predicted& out) {
    for (int r = 0; r < ranks_; ++r) {
      RankTimes& times = out.ranks[at(r)];
      const std::vector<double> rows = rows_by_owner(r);
      double all = 0;
      for (const double n : rows) all += n;
      // Each step after the first reads and writes o in f32.
      const double merge = memory_ms(static_cast<double>(rows_[at(r)]) * parts_of_heads() * 8.0 *
                                     static_cast<double>(s_.dv));
      double travelled = 0, computed = 0, before = 0;
      for (int step = 0; step < ranks_; ++step) {
        const int owner = (r + step) % ranks_;
        const double bytes = rows[at(owner)] * copies() * key_bytes();
        if (step > 0) {
          if (bytes == 0) continue;
          const bool inside = node(owner) == node(r);
          (inside ? times.own : times.across) += bytes;
          const double begin = std::max(travelled, before);
          travelled = begin + latency() + bytes / rate(inside ? how_.own_gb_s : how_.node_gb_s);
          times.travels.push_back({begin, travelled});
        }
        before = computed;
        const double share = all > 0 ? rows[at(owner)] / all : 0;
        const double start = std::max(travelled, computed);
        const double compute = std::max(flops_ms(pairs_[at(r)] * share), memory_ms(bytes)) + (step > 0 ? merge : 0) +
                               launch_ms;
        computed = start + compute;
        times.computes.push_back({start, computed});
        times.compute += compute;
      }
    }
  }

  void heads(Predicted& out) {
    if (s_.kv_heads % ranks_ != 0) {
      out.why_not = fmt::format("{} key heads do not divide by {} ranks", s_.kv_heads, ranks_);
      return;
    }
    const double pairs = all_pairs_ / ranks_;
    const double q_row = static_cast<double>(s_.batch * s_.q_heads) / ranks_ * q_bytes(),
                 o_row = static_cast<double>(s_.batch * s_.q_heads) / ranks_ * o_bytes(),
                 kv_row = static_cast<double>(s_.kv_batch * s_.kv_heads) / ranks_ * key_bytes();
    std::vector<double> kv_rows(count());
    for (std::size_t g = 0; g < kv_.blocks.size(); ++g)
      kv_rows[at(owners_.kv[g])] += static_cast<double>(kv_.blocks[g].rows());
    for (int r = 0; r < ranks_; ++r) {
      RankTimes& times = out.ranks[at(r)];
      Into there, back;
      for (int from = 0; from < ranks_; ++from) {
        if (from == r) continue;
        const double bytes = static_cast<double>(rows_[at(from)]) * q_row + kv_rows[at(from)] * kv_row,
                     results = static_cast<double>(rows_[at(r)]) * o_row;
        (node(from) == node(r) ? there.own : there.across) += bytes;
        (node(from) == node(r) ? back.own : back.across) += results;
      }
      const double come = ms(there),
                   compute = std::max(flops_ms(pairs), memory_ms(there.own + there.across)) + launch_ms;
      times.own = there.own + back.own;
      times.across = there.across + back.across;
      times.compute = compute;
      times.computes.push_back({come, come + compute});
      times.travels = {{0, come}, {come + compute, come + compute + ms(back)}};
    }
  }

  /// Every query goes to every rank; partial o in f32 and their lse come back.
  void decode(Predicted& out) {
    std::vector<double> load(count()), keys(count());
    for (int r = 0; r < ranks_; ++r) {
      const std::vector<double> rows = rows_by_owner(r);
      double all = 0;
      for (const double n : rows) all += n;
      for (std::size_t owner = 0; owner < count(); ++owner)
        if (all > 0) load[owner] += pairs_[at(r)] * rows[owner] / all;
    }
    for (std::size_t g = 0; g < kv_.blocks.size(); ++g)
      keys[at(owners_.kv[g])] += static_cast<double>(kv_.blocks[g].rows());
    for (int r = 0; r < ranks_; ++r) {
      RankTimes& times = out.ranks[at(r)];
      Into queries, parts;
      for (int other = 0; other < ranks_; ++other) {
        if (other == r) continue;
        const bool inside = node(other) == node(r);
        (inside ? queries.own : queries.across) += static_cast<double>(rows_[at(other)]) * parts_of_heads() * q_bytes();
        (inside ? parts.own : parts.across) += static_cast<double>(rows_[at(r)]) * parts_of_heads() *
                                               static_cast<double>(4 * s_.dv + 8);
      }
      const double come = ms(queries);
      const double bytes = keys[at(r)] * static_cast<double>(s_.kv_batch * s_.kv_heads) * key_bytes();
      const double compute = std::max(flops_ms(load[at(r)]), memory_ms(bytes)) + launch_ms;
      times.own = queries.own + parts.own;
      times.across = queries.across + parts.across;
      times.compute = compute;
      times.travels = {{0, come}, {come + compute, come + compute + ms(parts)}};
      times.computes = {{come, come + compute}};
    }
  }

  const Sizes& s_;
  const Axis& kv_;
  const Owners& owners_;
  int ranks_;
  const How& how_;
  std::vector<double> pairs_;
  std::vector<std::int64_t> rows_;
  std::vector<int> ranges_;  ///< by rank: runs of queries, which are the launches of a group
  double all_pairs_ = 0;
  Needs needs_;
};

}  // namespace

std::string_view name_of(Assignment assignment) {
  switch (assignment) {
    case Assignment::best: return "best";
    case Assignment::contiguous: return "contiguous";
    case Assignment::zigzag: return "zigzag";
    case Assignment::greedy: return "greedy";
  }
  return "";
}

std::string_view name_of(Travel travel) {
  switch (travel) {
    case Travel::best: return "best";
    case Travel::gather: return "gather";
    case Travel::ring: return "ring";
    case Travel::heads: return "heads";
    case Travel::decode: return "decode";
  }
  return "";
}

std::string milliseconds(double ms) { return ms < 100 ? fmt::format("{:.3g} ms", ms) : fmt::format("{:.0f} ms", ms); }

Needs::Needs(const Work& work, const Owners& owners, int n, bool kv_shared)
    : entries(kv_shared ? 1 : static_cast<std::size_t>(work.entries)), heads(static_cast<std::size_t>(work.heads)),
      ranks(static_cast<std::size_t>(n)), sets(entries * heads * ranks, BlockSet(owners.kv.size())) {
  for (std::int64_t e = 0; e < work.entries; ++e)
    for (std::int64_t h = 0; h < work.heads; ++h)
      for (std::size_t g = 0; g < owners.q.size(); ++g) {
        const std::size_t table = (entries > 1 ? static_cast<std::size_t>(e) : 0) * heads + static_cast<std::size_t>(h);
        for (const Span& span : work.need(e, h, g))
          sets[table * ranks + static_cast<std::size_t>(owners.q[g])].add(span);
      }
}

Predicted predict(const Setting& setting, const Work& work, const Owners& owners, Travel travel, int groups) {
  return Predictor(setting, work, owners)(travel, groups);
}

std::vector<int> groups_of(std::int64_t kv_heads) {
  std::vector<int> out;
  for (int g = 1; g <= 8 && g <= kv_heads; ++g)
    if (kv_heads % g == 0) out.push_back(g);
  if (out.empty()) out.push_back(1);
  return out;
}

}  // namespace attune::runtime::ranks
