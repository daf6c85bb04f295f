// runtime/ranks/schedule/heads.cpp — all-to-all: ranks have some positions of all heads, and compute all positions of
// some heads
#include "runtime/ranks/schedule/keys.h"
#include "runtime/ranks/schedule/schedule.h"

namespace attune::runtime::ranks {
namespace {

/// A tensor that ranks hold by rows and compute by heads.
struct Swapped {
  Rows own;                                               ///< this rank's rows, of all heads
  Rows whole;                                             ///< all rows, of this rank's heads
  const std::vector<std::vector<Sharding::Range>>& held;  ///< rows that each rank holds
};
/// there: rows go to the ranks that compute their heads; back: they return to their owners.
enum class Way : std::uint8_t { there, back };

void swap(const Rank& rank, Carrier& carrier, std::span<const Swapped> all, Way way) {
  Exchange out;
  for (int peer = 0; peer < rank.count(); ++peer)
    for (const Swapped& one : all) {
      const std::int64_t each = one.whole.heads();
      for (std::int64_t e = 0; e < one.whole.entries(); ++e) {
        // This rank's rows of the peer's heads, and the peer's rows of this rank's heads.
        std::vector<Chunk> mine, theirs;
        std::int64_t row = 0;
        for (const Sharding::Range& range : one.held[as_size(rank.me())]) {
          const std::int64_t rows = range.end - range.begin;
          mine.push_back({peer, one.own, {.entry = e, .head = peer * each, .row = row, .rows = rows, .heads = each}});
          row += rows;
        }
        for (const Sharding::Range& range : one.held[as_size(peer)])
          theirs.push_back(
              {peer, one.whole, {.entry = e, .row = range.begin, .rows = range.end - range.begin, .heads = each}});
        const auto& from = way == Way::there ? mine : theirs;
        const auto& to = way == Way::there ? theirs : mine;
        if (peer != rank.me()) {
          out.send.insert(out.send.end(), from.begin(), from.end());
          out.receive.insert(out.receive.end(), to.begin(), to.end());
        } else {
          for (std::size_t i = 0; i < from.size(); ++i) carrier.copy(from[i], to[i], Lane::travel);
        }
      }
    }
  carrier.exchange(out);
}

/// The call's tensors, and the tensors of the rank's heads.
class HeadsCall {
 public:
  HeadsCall(const Rank& rank, Carrier& carrier, const Forward& call) : rank_(rank), carrier_(carrier), call_(call) {
    const std::int64_t each = rank.problem().kv_heads / rank.count();
    keys_.wanted = {.heads = {rank.me() * each, (rank.me() + 1) * each}, .all = true};
    lay_out();
  }

  void operator()() {
    const bool one = carrier_.values_within_keys();
    const auto& q_of = rank_.ranks().q_of;
    const auto& kv_of = rank_.ranks().kv_of;
    carrier_.wait(Lane::travel, carrier_.mark(Lane::call));
    std::vector<Swapped> in{{q_.rows(), rank_.rows(part_.q), q_of}, {k_.rows(), rank_.rows(keys_.k), kv_of}};
    if (!one) in.push_back({v_.rows(), rank_.rows(keys_.v), kv_of});
    swap(rank_, carrier_, in, Way::there);
    carrier_.wait(Lane::call, carrier_.mark(Lane::travel));
    carrier_.run(part_, {.keys = keys_, .all_queries = true});
    carrier_.wait(Lane::travel, carrier_.mark(Lane::call));
    std::vector<Swapped> out{{o_.rows(), rank_.rows(part_.o), q_of}};
    if (call_.lse.given()) out.push_back({lse_.rows(), rank_.numbers(part_.lse), q_of});
    if (call_.max.given()) out.push_back({max_.rows(), rank_.numbers(part_.max), q_of});
    swap(rank_, carrier_, out, Way::back);
    carrier_.join_travel();
    for (const auto& [copy, to] : {std::pair{&o_, &call_.o}, {&lse_, &call_.lse}, {&max_, &call_.max}})
      if (copy->is_copy()) carrier_.copy(copy->rows().tensor, *to);
    carrier_.ended();
  }

 private:
  void lay_out() {
    const bool one = carrier_.values_within_keys();
    const compiler::Problem& p = rank_.problem();
    const std::int64_t heads = keys_.wanted.heads.count(), q_heads = heads * p.group, rows = rank_.ranks().q.rows,
                       keys = rank_.ranks().kv.rows;
    WorkspaceLayout space;
    const auto own = [&](const Rows& of) { return Sendable(carrier_, of, space); };
    const auto take = [&](std::int64_t elements, DType type) {
      return space.take<std::byte>(elements * static_cast<std::int64_t>(size_of(type)));
    };
    k_ = own(rank_.rows(call_.k));
    if (!one) v_ = own(rank_.rows(call_.v));
    const std::int64_t all_keys = rank_.key_entries() * heads * keys, all = rank_.q_entries() * q_heads * rows;
    const auto k_room = take(all_keys * p.d, call_.k.dtype), v_room = take(one ? 0 : all_keys * p.dv, call_.v.dtype),
               q_room = take(all * p.d, call_.q.dtype), o_room = take(all * p.dv, call_.o.dtype),
               lse_room = take(all, number_of(call_.lse)), max_room = take(all, number_of(call_.max));
    q_ = own(rank_.rows(call_.q));
    o_ = own(rank_.rows(call_.o));
    lse_ = own(rank_.numbers(call_.lse));
    max_ = own(rank_.numbers(call_.max));
    std::byte* const memory = carrier_.begin(space, 0);
    place_own(memory);
    const auto placed = [&](const Region<std::byte>& region, DType type, std::int64_t width) {
      return rank_.placed(region.in(memory), type, rank_.q_entries(), q_heads, rows, width);
    };
    part_ = call_;
    part_.q = placed(q_room, call_.q.dtype, p.d);
    part_.o = placed(o_room, call_.o.dtype, p.dv);
    if (call_.lse.given()) part_.lse = rank_.placed_numbers(lse_room.in(memory), call_.lse.dtype, q_heads, rows);
    if (call_.max.given()) part_.max = rank_.placed_numbers(max_room.in(memory), call_.max.dtype, q_heads, rows);
    keys_.k = rank_.placed(k_room.in(memory), call_.k.dtype, rank_.key_entries(), heads, keys, p.d);
    keys_.v = one ? keys_.k : rank_.placed(v_room.in(memory), call_.v.dtype, rank_.key_entries(), heads, keys, p.dv);
    if (one) keys_.v.shape[as_size(keys_.v.rank) - 1] = p.dv;
    keys_.ranges = rank_.key_ranges(rank_.me(), keys_.wanted);
  }
  void place_own(std::byte* memory) {
    for (Sendable* one : {&k_, &v_, &q_, &o_, &lse_, &max_}) one->place(rank_, memory);
    for (const auto& [copy, from] : {std::pair{&k_, &call_.k}, {&v_, &call_.v}, {&q_, &call_.q}})
      if (copy->is_copy()) carrier_.copy(*from, copy->rows().tensor);
  }
  static DType number_of(const Tensor& t) { return t.given() ? t.dtype : DType::f32; }

  const Rank& rank_;
  Carrier& carrier_;
  const Forward& call_;
  Sendable q_, k_, v_, o_, lse_, max_;
  Forward part_;
  Keys keys_;
};

}  // namespace

void heads(const Rank& rank, Carrier& carrier, const Forward& call) { HeadsCall(rank, carrier, call)(); }

}  // namespace attune::runtime::ranks
