// runtime/ranks/schedule/decode.cpp — decode: queries go to all keys, and results go back, where they are merged
#include <array>

#include "runtime/ranks/schedule/keys.h"
#include "runtime/ranks/schedule/schedule.h"

namespace attune::runtime::ranks {
namespace {

/// Memory for a tensor, or for one tensor per rank.
struct RowsRoom {
  Region<std::byte> region;
  DType type = DType::f32;
  std::int64_t rows = 0, width = 0;  ///< width 0: one number per row
};

class DecodeCall {
 public:
  DecodeCall(const Rank& rank, Carrier& carrier, const Forward& call)
      : rank_(rank), carrier_(carrier), call_(call), results_(call.max.given() ? 3 : 2) {
    lay_out();
  }

  void operator()() {
    const Rows own = tensor(own_q_), whole = tensor(whole_q_);
    if (rank_.q_rows() > 0) carrier_.copy(call_.q, own.tensor);
    carrier_.wait(Lane::travel, carrier_.mark(Lane::call));
    send_queries(own, whole);
    carrier_.wait(Lane::call, carrier_.mark(Lane::travel));

    Forward part = call_;
    part.q = whole.tensor;
    place_keys();
    Partial here{.o = tensor(here_[0]).tensor,
                 .lse = tensor(here_[1]).tensor,
                 .max = results_ > 2 ? tensor(here_[2]).tensor : Tensor(),
                 .sink = rank_.me() == 0};  // only one rank adds the sink
    carrier_.clear(here);
    carrier_.attend(part, {.keys = keys_, .all_queries = true}, here);

    carrier_.wait(Lane::travel, carrier_.mark(Lane::call));
    send_results();
    carrier_.join_travel();
    if (rank_.q_rows() > 0)
      carrier_.merge({.o = tensor(parts_[0]).tensor,
                      .lse = tensor(parts_[1]).tensor,
                      .max = results_ > 2 ? tensor(parts_[2]).tensor : Tensor(),
                      .count = rank_.count()},
                     call_);
    carrier_.ended();
  }

 private:
  void lay_out() {
    const compiler::Problem& p = rank_.problem();
    const std::int64_t all = rank_.ranks().q.rows, mine = rank_.q_rows(), heads = rank_.q_entries() * p.q_heads;
    const DType number = carrier_.number();
    WorkspaceLayout space;
    const auto take = [&](DType type, std::int64_t rows, std::int64_t width, std::int64_t parts) {
      const std::int64_t elements = parts * heads * rows * std::max<std::int64_t>(width, 1);
      return RowsRoom{space.take<std::byte>(elements * static_cast<std::int64_t>(size_of(type))), type, rows, width};
    };
    own_q_ = take(call_.q.dtype, mine, p.d, 1);
    whole_q_ = take(call_.q.dtype, all, p.d, 1);
    copies_keys_ = !carrier_.reads(rank_.rows(call_.k)) || !carrier_.reads(rank_.rows(call_.v));
    const auto of_keys = [&](const Tensor& t, std::int64_t width) {
      return space.take<std::byte>(copies_keys_ ? rank_.key_entries() * p.kv_heads * rank_.kv_rows() * width *
                                                      static_cast<std::int64_t>(size_of(t.dtype))
                                                : 0);
    };
    k_region_ = of_keys(call_.k, p.d);
    v_region_ = of_keys(call_.v, p.dv);
    here_ = {take(DType::f32, all, p.dv, 1), take(number, all, 0, 1), take(number, all, 0, 1)};
    parts_ = {take(DType::f32, mine, p.dv, rank_.count()), take(number, mine, 0, rank_.count()),
              take(number, mine, 0, rank_.count())};
    memory_ = carrier_.begin(space, 0);
  }
  Rows tensor(const RowsRoom& of, int part = 0) const {
    const std::int64_t heads = rank_.problem().q_heads, bytes = rank_.q_entries() * heads * of.rows *
                                                                std::max<std::int64_t>(of.width, 1) *
                                                                static_cast<std::int64_t>(size_of(of.type));
    std::byte* const at = of.region.in(memory_);
    std::byte* const its = at ? at + part * bytes : at;
    return of.width > 0 ? rank_.rows(rank_.placed(its, of.type, rank_.q_entries(), heads, of.rows, of.width))
                        : rank_.numbers(rank_.placed_numbers(its, of.type, heads, of.rows));
  }
  /// Places the rank's own keys in memory that the engine can read.
  void place_keys() {
    keys_.wanted = {.heads = rank_.all_heads(), .step = 0, .all = true};
    keys_.places = Keys::Places::owners;
    keys_.ranges = rank_.key_ranges(rank_.me(), keys_.wanted);
    keys_.k = call_.k;
    keys_.v = call_.v;
    if (!copies_keys_ || rank_.kv_rows() == 0) return;
    for (const auto& [t, region] : {std::pair{&keys_.k, &k_region_}, {&keys_.v, &v_region_}}) {
      const Rows from = rank_.rows(*t);
      *t = rank_.placed(region->in(memory_), t->dtype, from.entries(), from.heads(), from.count(), from.width());
      carrier_.copy(from.tensor, *t);
    }
  }

  Rect rect(std::int64_t row, std::int64_t rows) const {
    return {.row = row, .rows = rows, .heads = rank_.problem().q_heads, .entries = rank_.q_entries()};
  }
  /// Calls `body` with each range of rows that a rank holds, and with the range's first row on that rank.
  template <class Body>
  void each_range(int rank, const Body& body) const {
    std::int64_t row = 0;
    for (const Sharding::Range& range : rank_.ranks().q_of[as_size(rank)]) {
      body(range.begin, row, range.end - range.begin);
      row += range.end - range.begin;
    }
  }

  /// Sends this rank's rows to all others, and receives theirs.
  void send_queries(const Rows& own, const Rows& whole) {
    Exchange out;
    for (int peer = 0; peer < rank_.count(); ++peer) {
      each_range(rank_.me(), [&](std::int64_t begin, std::int64_t row, std::int64_t rows) {
        if (peer != rank_.me())
          out.send.push_back({peer, own, rect(row, rows)});
        else
          carrier_.copy({peer, own, rect(row, rows)}, {peer, whole, rect(begin, rows)}, Lane::call);
      });
      if (peer == rank_.me()) continue;
      each_range(peer, [&](std::int64_t begin, std::int64_t, std::int64_t rows) {
        out.receive.push_back({peer, whole, rect(begin, rows)});
      });
    }
    carrier_.exchange(out);
  }
  /// Sends results over this rank's keys to the owners of the queries, and receives the results of this rank's queries
  /// over the keys of others.
  void send_results() {
    Exchange out;
    for (std::size_t i = 0; i < results_; ++i)
      for (int peer = 0; peer < rank_.count(); ++peer) {
        const Rows from = tensor(here_[i]), to = tensor(parts_[i], peer);
        if (peer != rank_.me())
          each_range(peer, [&](std::int64_t begin, std::int64_t, std::int64_t rows) {
            out.send.push_back({peer, from, rect(begin, rows)});
          });
        each_range(rank_.me(), [&](std::int64_t begin, std::int64_t row, std::int64_t rows) {
          const Chunk into{peer, to, rect(row, rows)};
          if (peer != rank_.me())
            out.receive.push_back(into);
          else
            carrier_.copy({peer, from, rect(begin, rows)}, into, Lane::call);
        });
      }
    carrier_.exchange(out);
  }

  const Rank& rank_;
  Carrier& carrier_;
  const Forward& call_;
  const std::size_t results_;  ///< number of results: o and lse, and max if the call has it
  bool copies_keys_ = false;
  RowsRoom own_q_, whole_q_;
  /// here_: results of all queries; parts_: results of this rank's queries, from each rank.
  std::array<RowsRoom, 3> here_, parts_;
  Region<std::byte> k_region_, v_region_;
  Keys keys_;
  std::byte* memory_ = nullptr;
};

}  // namespace

void decode(const Rank& rank, Carrier& carrier, const Forward& call) { DecodeCall(rank, carrier, call)(); }

}  // namespace attune::runtime::ranks
