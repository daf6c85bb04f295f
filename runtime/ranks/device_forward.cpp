// runtime/ranks/device_forward.cpp — a rank's part of a forward on a device
#include <array>

#include "codegen/ceil_div.h"
#include "codegen/choose.h"
#include "runtime/ranks/device_rank.h"
#include "runtime/ranks/digester.h"
#include "runtime/ranks/or_stop.h"

namespace attune::runtime::ranks {
namespace {

class ForwardOnDevice : DeviceRank {
 public:
  ForwardOnDevice(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const PartMods& parts,
                  const Forward& call, const compiler::Problem& problem, const cuda::Means& means)
      : DeviceRank(plan, lowered, parts, call, problem, means), call_(call) {}

  void operator()() {
    agree(digest());
    gather();
    if (!means_.used) return;
    *means_.used = used_;
    means_.used->kernel += " by gather";
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

  void gather() {
    // A kernel for few queries divides their keys among its blocks by how many heads there are.
    const std::int64_t groups = codegen::few_rows(problem_.q.length, problem_.group) ? 1 : layer_.chosen().groups;
    WorkspaceLayout space;
    Own own;
    lay_out(own, space);
    std::array<Keys, 2> keys;
    const KeyHeads most{0, ceil_div(problem_.kv_heads, groups)};
    for (std::int64_t i = 0; i < std::min<std::int64_t>(groups, 2); ++i) lay_out(keys[as_size(i)], most, space);
    std::byte* const memory = begin(space);
    put_own(own, memory);
    start_streams();
    const std::vector<Stretch> all = stretches();
    cuda::Moment here = bring(own, heads_of(0, groups), memory, keys[0]);
    for (std::int64_t g = 0; g < groups; ++g) {
      Keys& now = keys[as_size(g % 2)];
      const cuda::Moment ready = here;
      // Exchanges are put before the launches that they run beside: these take all multiprocessors.
      if (g + 1 < groups) here = bring(own, heads_of(g + 1, groups), memory, keys[as_size((g + 1) % 2)]);
      wait_for(ready);
      for (const Stretch& one : all) launch(one, heads_of(g, groups), now);
      now.used = launched();
    }
    end();
  }

  void launch(const Stretch& of, const KeyHeads& heads, const Keys& keys) {
    const compiler::LoweredMod& mod = part_mods_(compiler::PartSink::kept);
    const compiler::Problem p = problem_of(of, heads);
    const std::vector<double> params = params_of(mod, part_of(of, heads));
    const std::int64_t first = heads.first * problem_.group;
    Forward call = call_;
    call.q = view(call_.q, of, first, p.q_heads);
    call.k = keys.k;
    call.v = keys.v;
    call.o = view(call_.o, of, first, p.q_heads);
    call.lse = view(call_.lse, of, first, p.q_heads, true);
    call.max = view(call_.max, of, first, p.q_heads, true);
    call.params = params;
    Used used;
    const cuda::Means means = means_of(launch_stream(), &used);
    cuda::forward(mod, call, p, means);
    used.workspace = std::max(used.workspace, used_.workspace);
    used_ = used;
  }

  const Forward& call_;
  Used used_;  ///< by the last launch
};

}  // namespace

void forward_on_device(const detail::Ranks& plan, const compiler::LoweredMod& lowered, const PartMods& parts,
                       const Forward& call, const compiler::Problem& problem, const cuda::Means& means) {
  or_stop(plan, [&] { ForwardOnDevice(plan, lowered, parts, call, problem, means)(); });
}

}  // namespace attune::runtime::ranks
