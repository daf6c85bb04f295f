// runtime/ranks/device_forward.cpp — a rank's part of a forward on a device
#include <array>
#include <optional>
#include <tuple>

#include "codegen/ceil_div.h"
#include "codegen/choose.h"
#include "codegen/parts.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/ranks/device_rank.h"
#include "runtime/ranks/plan/digester.h"

namespace attune::runtime::ranks {
namespace {

class ForwardOnDevice : DeviceRank {
 public:
  ForwardOnDevice(const detail::Ranks& plan, const PartMods& parts, const Call& of, const Means& means)
      : DeviceRank(plan, parts, of, of.forward(), means), call_(of.forward()), by_(travel()) {}

  void operator()() {
    agree(digest());
    switch (by_) {
      case Travel::best:
      case Travel::ring:
      case Travel::gather: gather(); break;
      case Travel::heads: heads(); break;
      case Travel::few: few(); break;
    }
    if (!means_.used) return;
    *means_.used = used_;
    means_.used->kernel += fmt::format(" by {}", name_of(by_));
  }

 private:
  ir::Digest digest() const {
    Digester d;
    d.add(std::int64_t{2});
    d.add(lowered_.digest);
    d.add(std::int64_t{one_});
    for (const Tensor* t : {&call_.o, &call_.lse, &call_.max})
      d.add(t->given() ? static_cast<std::int64_t>(t->dtype) : std::int64_t{-1});
    return d.digest();
  }

  /// The plan's schedule, where a device has it. A ring would save the memory of one group's keys; more groups save
  /// more. Few queries go to the keys where each rank's are one run, and the kernel takes them that takes keys which do
  /// not begin at 0. All ranks must decide alike, so no address counts.
  Travel travel() const {
    const Travel planned = layer_.chosen().travel;
    const bool in_sixteens = size_ == 2 && problem_.d % 8 == 0 && problem_.dv % 8 == 0;
    const bool to_keys = codegen::few_rows(problem_.q.length, problem_.group) && !packed() && !one_ && in_sixteens &&
                         codegen::linear_in_p(lowered_.mod.prob) &&
                         std::ranges::all_of(plan_.kv_of, [](const auto& runs) { return runs.size() <= 1; });
    return planned == Travel::heads || (planned == Travel::few && to_keys) ? planned : Travel::gather;
  }

  void gather() {
    // A kernel for few queries divides their keys among its blocks by how many heads there are.
    const std::int64_t groups = codegen::few_rows(problem_.q.length, problem_.group) ? 1 : layer_.chosen().groups;
    WorkspaceLayout space;
    std::array<Keys, 2> keys;
    const KeyHeads most{0, ceil_div(problem_.kv_heads, groups)};
    for (std::int64_t i = 0; i < std::min<std::int64_t>(groups, 2); ++i) lay_out(keys[as_size(i)], most, space);
    Own own;
    lay_out(own, space);
    std::byte* const memory = begin(space, groups);
    put_own(own, memory);
    start_streams();
    const std::vector<Stretch> all = stretches();
    std::array<cuda::Moment, 2> here = bring(own, heads_of(0, groups), memory, keys[0]);
    for (std::int64_t g = 0; g < groups; ++g) {
      Keys& now = keys[as_size(g % 2)];
      const std::array<cuda::Moment, 2> ready = here;
      // Exchanges are put before the launches that they run beside: these take all multiprocessors.
      if (g + 1 < groups) here = bring(own, heads_of(g + 1, groups), memory, keys[as_size((g + 1) % 2)]);
      wait_for(ready);
      for (const Stretch& one : all) launch(one, heads_of(g, groups), now);
      now.used = launched();
    }
    end();
  }

  /// Calls `body` with each stretch that the rank holds, and the row where it begins in the rank's tensors.
  template <class Body>
  static void each_own(std::span<const Shares::Stretch> stretches, const Body& body) {
    std::int64_t row = 0;
    for (const Shares::Stretch& s : stretches) {
      body(s, row);
      row += s.end - s.begin;
    }
  }

  // ---- All-to-all.

  using Stretches = std::vector<std::vector<Shares::Stretch>>;
  /// One tensor whose rows ranks hold, `own` here, and whose heads they compute, `whole` here: `each` of a rank.
  struct Swapped {
    HeadRows own, whole;
    std::int64_t each = 0, entries = 1;
    const Stretches* of = nullptr;
  };
  /// Rows go to the ranks that compute their heads, or come back from there.
  enum class Way : std::uint8_t { there, back };
  void swap(std::span<const Swapped> all, Way way) const {
    std::vector<Transport::Part> send, receive;
    for (int peer = 0; peer < count(); ++peer)
      for (const Swapped& one : all)
        for (std::int64_t e = 0; e < one.entries; ++e) {
          // This rank's rows of the peer's heads, and the peer's rows of this rank's heads.
          std::vector<Transport::Part> mine, theirs;
          each_own((*one.of)[as_size(me_)], [&](const Shares::Stretch& s, std::int64_t row) {
            mine.push_back(part(peer, one.own, e, peer * one.each, row, s.end - s.begin, one.each));
          });
          for (const Shares::Stretch& s : (*one.of)[as_size(peer)])
            theirs.push_back(part(peer, one.whole, e, 0, s.begin, s.end - s.begin, one.each));
          const auto& from = way == Way::there ? mine : theirs;
          const auto& to = way == Way::there ? theirs : mine;
          if (peer != me_) {
            send.insert(send.end(), from.begin(), from.end());
            receive.insert(receive.end(), to.begin(), to.end());
          } else {
            for (std::size_t i = 0; i < from.size(); ++i)
              cuda::copy_runs(runs_of(from[i]), runs_of(to[i]), room_->travel());
          }
        }
    exchange(send, receive);
  }

  /// Memory for a tensor, where the call's own has no contiguous rows.
  struct Copy {
    Room<std::byte> room;
    Tensor at;  ///< the call's own, or the copy
  };
  Copy copy_of(const Tensor& t, bool numbers, WorkspaceLayout& space) const {
    if (!t.given() || t.size() == 0 || (numbers ? has_numbers(t) : has_rows(t))) return {{}, t};
    return {space.take<std::byte>(t.size() * static_cast<std::int64_t>(size_of(t.dtype))), t};
  }
  void place(Copy& copy, bool numbers, std::byte* memory) const {
    const Tensor& t = copy.at;
    if (copy.room.count == 0) return;
    std::byte* const at = copy.room.in(memory);
    const std::size_t head = numbers && packed() ? 0 : 1, rows = packed() ? (numbers ? 1 : 0) : 2;
    copy.at = numbers ? placed_numbers(at, t.shape[head], t.shape[rows])
                      : placed(at, t.dtype, t.shape[1], t.shape[rows], t.shape[as_size(t.rank) - 1], q_entries());
  }

  void heads() {
    const std::int64_t each = problem_.kv_heads / count(), q_each = each * problem_.group, rows = plan_.q.rows;
    const KeyHeads mine{me_ * each, (me_ + 1) * each};
    WorkspaceLayout space;
    Own own;
    lay_out(own, space);
    Keys keys;
    lay_out(keys, mine, space);
    const auto take = [&](std::int64_t width, std::size_t size) {
      return space.take<std::byte>(q_entries() * q_each * rows * width * static_cast<std::int64_t>(size));
    };
    const auto q_room = take(problem_.d, size_of(call_.q.dtype)), o_room = take(problem_.dv, size_of(call_.o.dtype)),
               lse_room = take(1, sizeof(float)), max_room = take(1, sizeof(float));
    Copy q = copy_of(call_.q, false, space), o = copy_of(call_.o, false, space), lse = copy_of(call_.lse, true, space),
         max = copy_of(call_.max, true, space);
    std::byte* const memory = begin(space, 0);
    put_own(own, memory);
    for (Copy* one : {&q, &o}) place(*one, false, memory);
    for (Copy* one : {&lse, &max}) place(*one, true, memory);
    if (q.room.count > 0) cuda::copy_elements(device_, call_.q, q.at, stream_);
    start_travel();

    Forward call = call_;
    call.q = placed(q_room.in(memory), call_.q.dtype, q_each, rows, problem_.d, q_entries());
    call.o = placed(o_room.in(memory), call_.o.dtype, q_each, rows, problem_.dv, q_entries());
    if (call.lse.given()) call.lse = placed_numbers(lse_room.in(memory), q_each, rows);
    if (call.max.given()) call.max = placed_numbers(max_room.in(memory), q_each, rows);
    DeviceRank::place(keys, mine, memory);
    call.k = keys.k;
    call.v = keys.v;
    std::vector<Swapped> in{{head_rows(q.at), head_rows(call.q), q_each, q_entries(), &plan_.q_of},
                            {own.k, head_rows(call.k), each, key_entries(), &plan_.kv_of}};
    if (!one_) in.push_back({own.v, head_rows(call.v), each, key_entries(), &plan_.kv_of});
    swap(in, Way::there);
    cuda::Moment(room_->travel()).awaited_by(stream_);

    compiler::Problem p = problem_;
    p.kv_heads = each;
    p.q_heads = q_each;
    compute(call, p, {.first_head = me_ * q_each}, compiler::PartSink::kept, stream_);

    cuda::Moment(stream_).awaited_by(room_->travel());
    std::vector<Swapped> out{{head_rows(o.at), head_rows(call.o), q_each, q_entries(), &plan_.q_of}};
    if (call.lse.given())
      out.push_back({head_numbers(lse.at), head_numbers(call.lse), q_each, q_entries(), &plan_.q_of});
    if (call.max.given())
      out.push_back({head_numbers(max.at), head_numbers(call.max), q_each, q_entries(), &plan_.q_of});
    swap(out, Way::back);
    end_travel();
    for (const auto& [copy, to] : {std::pair{&o, &call_.o}, {&lse, &call_.lse}, {&max, &call_.max}})
      if (copy->room.count > 0) cuda::copy_elements(device_, copy->at, *to, stream_);
    room_->last = cuda::Moment(stream_);
  }

  // ---- Few queries, to the keys.

  /// Numbers of all queries on a rank, or of a rank's queries by each rank: [entry and head, row, column], contiguous.
  struct FewRows {
    std::byte* data = nullptr;
    std::int64_t heads = 0, rows = 0, row = 0;  ///< heads: of all entries; row: bytes

    Transport::Part part(int peer, std::int64_t first, std::int64_t count) const {
      return {.peer = peer,
              .data = data + first * row,
              .bytes = as_size(heads * count * row),
              .runs = as_size(heads),
              .stride = as_size(rows * row)};
    }
    FewRows of_rank(int rank) const { return {data + rank * heads * rows * row, heads, rows, row}; }
  };
  struct FewRoom {
    Room<std::byte> room;
    std::int64_t rows = 0, row = 0;
  };

  void few() {
    const std::int64_t all = plan_.q.rows, mine = plan_.q_rows(me_), heads = problem_.batch * problem_.q_heads;
    WorkspaceLayout space;
    const auto take = [&](std::int64_t rows, std::int64_t row, std::int64_t parts) {
      return FewRoom{space.take<std::byte>(parts * heads * rows * row), rows, row};
    };
    constexpr auto number = std::int64_t{sizeof(float)};
    const std::int64_t q_row = problem_.d * static_cast<std::int64_t>(size_of(call_.q.dtype));
    const FewRoom own_q = take(mine, q_row, 1), whole_q = take(all, q_row, 1);
    // o, lse and max: of all queries, then of this rank's by each rank.
    const std::size_t results = call_.max.given() ? 3 : 2;
    // The kernel reads keys by 16 bytes.
    const bool copies = cuda::copied_bytes({&k_, &v_}) < 16;
    const auto of_keys = [&](std::int64_t width) {
      return space.take<std::byte>(copies ? key_entries() * problem_.kv_heads * plan_.kv_rows(me_) * width * size_ : 0);
    };
    const Room<std::byte> k_room = of_keys(problem_.d), v_room = of_keys(problem_.dv);
    const std::array here{take(all, problem_.dv * number, 1), take(all, number, 1), take(all, number, 1)},
        parts{take(mine, problem_.dv * number, count()), take(mine, number, count()), take(mine, number, count())};
    std::byte* const memory = begin(space, 0);
    const auto rows = [&](const FewRoom& of) { return FewRows{of.room.in(memory), heads, of.rows, of.row}; };
    const auto tensor = [&](const FewRoom& of, DType type, std::int64_t width) {
      return Tensor(of.room.in(memory), type, {problem_.batch, problem_.q_heads, of.rows, width}, {}, q_.device);
    };
    if (mine > 0) cuda::copy_elements(device_, call_.q, tensor(own_q, call_.q.dtype, problem_.d), stream_);
    start_travel();
    std::vector<Transport::Part> send, receive;
    each_row_of_all(rows(own_q), rows(whole_q), send, receive);
    exchange(send, receive);
    cuda::Moment(room_->travel()).awaited_by(stream_);

    const auto& runs = plan_.kv_of[as_size(me_)];
    const Shares::Stretch keys = runs.empty() ? Shares::Stretch{} : runs.front();
    compiler::Problem p = problem_;
    p.kv.length = keys.end - keys.begin;
    p.kv_offset = static_cast<std::int32_t>(problem_.kv_offset + keys.begin);
    Forward call = call_;
    call.q = tensor(whole_q, call_.q.dtype, problem_.d);
    call.kv_offset = p.kv_offset;
    if (copies && plan_.kv_rows(me_) > 0)
      for (const auto& [t, room, width] : {std::tuple{&call.k, &k_room, problem_.d}, {&call.v, &v_room, problem_.dv}}) {
        const Tensor to = placed(room->in(memory), t->dtype, problem_.kv_heads, plan_.kv_rows(me_), width,
                                 key_entries());
        cuda::copy_elements(device_, *t, to, stream_);
        *t = to;
      }
    call.o = tensor(here[0], DType::f32, problem_.dv);
    const auto numbers = [&](const FewRoom& of) {
      return placed_numbers(of.room.in(memory), problem_.q_heads, of.rows);
    };
    call.lse = numbers(here[1]);
    call.max = call_.max.given() ? numbers(here[2]) : Tensor();
    compute(call, p, {.more_keys = problem_.kv.length - keys.end},
            me_ == 0 ? compiler::PartSink::kept : compiler::PartSink::dropped, stream_);

    // Parts go to the owners of their queries, which merge them in the order of ranks.
    start_travel();
    send.clear();
    receive.clear();
    for (std::size_t i = 0; i < results; ++i)
      for (int peer = 0; peer < count(); ++peer) {
        const FewRows from = rows(here[i]), to = rows(parts[i]).of_rank(peer);
        if (peer != me_)
          for (const Shares::Stretch& s : plan_.q_of[as_size(peer)])
            send.push_back(from.part(peer, s.begin, s.end - s.begin));
        each_own(plan_.q_of[as_size(me_)], [&](const Shares::Stretch& s, std::int64_t row) {
          const Transport::Part into = to.part(peer, row, s.end - s.begin);
          if (peer != me_)
            receive.push_back(into);
          else
            cuda::copy_runs(runs_of(from.part(me_, s.begin, s.end - s.begin)), runs_of(into), stream_);
        });
      }
    exchange(send, receive);
    end_travel();
    if (mine > 0)
      cuda::merge_parts(device_,
                        {.o = reinterpret_cast<const float*>(parts[0].room.in(memory)),
                         .lse = reinterpret_cast<const float*>(parts[1].room.in(memory)),
                         .max = results > 2 ? reinterpret_cast<const float*>(parts[2].room.in(memory)) : nullptr,
                         .parts = count()},
                        call_.o, call_.lse, call_.max, stream_);
    room_->last = cuda::Moment(stream_);
  }
  /// This rank's rows to all others, and theirs to this one; its own are copied on the caller's stream.
  void each_row_of_all(const FewRows& own, const FewRows& whole, std::vector<Transport::Part>& send,
                       std::vector<Transport::Part>& receive) const {
    for (int peer = 0; peer < count(); ++peer) {
      each_own(plan_.q_of[as_size(me_)], [&](const Shares::Stretch& s, std::int64_t row) {
        const Transport::Part from = own.part(peer, row, s.end - s.begin);
        if (peer != me_)
          send.push_back(from);
        else
          cuda::copy_runs(runs_of(from), runs_of(whole.part(me_, s.begin, s.end - s.begin)), stream_);
      });
      if (peer == me_) continue;
      for (const Shares::Stretch& s : plan_.q_of[as_size(peer)])
        receive.push_back(whole.part(peer, s.begin, s.end - s.begin));
    }
  }

  // ---- Launches.

  void launch(const Stretch& of, const KeyHeads& heads, const Keys& keys) {
    const compiler::Problem p = problem_of(of, heads);
    const std::int64_t first = heads.first * problem_.group;
    Forward call = call_;
    call.q = view(call_.q, of, first, p.q_heads);
    call.k = keys.k;
    call.v = keys.v;
    call.o = view(call_.o, of, first, p.q_heads);
    call.lse = view(call_.lse, of, first, p.q_heads, true);
    call.max = view(call_.max, of, first, p.q_heads, true);
    compute(call, p, part_of(of, heads), compiler::PartSink::kept, launch_stream());
  }

  /// Puts a part of the call on a stream: `call` has its tensors, `p` its sizes.
  void compute(Forward call, const compiler::Problem& p, const compiler::Part& part, compiler::PartSink sink,
               cuda::cu::Stream stream) {
    const compiler::LoweredMod& mod = part_mods_(sink);
    const std::vector<double> params = params_of(mod, part);
    call.params = params;
    Used used;
    Means means = means_of(stream, &used);
    // Both kernels have the same expressions. Left to itself, the choice may still differ, where registers are scarce.
    if (mod.mod.whole && by_ != Travel::few && !kernel_)
      kernel_ = {.variant = cuda::forward_variant(slice(lowered_, call, problem_), means_of(stream_, nullptr)),
                 .only = true,
                 .origin = {}};
    means.preference = kernel_ ? &*kernel_ : nullptr;
    cuda::forward(slice(mod, call, p), means);
    used.workspace = std::max(used.workspace, used_.workspace);
    used_ = used;
  }

  const Forward& call_;
  Travel by_;
  std::optional<codegen::Preference> kernel_;  ///< that one rank would use, where parts have kernels of their own
  Used used_;                                  ///< by the last launch
};

}  // namespace

void forward_on_device(const detail::Ranks& plan, const PartMods& parts, const Call& call, const Means& means) {
  ForwardOnDevice(plan, parts, call, means)();
}

}  // namespace attune::runtime::ranks
