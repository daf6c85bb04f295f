// runtime/engines/cpu/forward.cpp — flash attention: keys and values are packed once, then each tile of queries loops
// over them
#include <algorithm>

#include "runtime/engines/cpu/forward_plan.h"
#include "runtime/engines/cpu/forward_walk.h"

namespace attune::runtime::cpu {
namespace {

using compiler::Problem;

template <class F>
void timed(double& seconds, const F& work) {
  const Clock clock;
  work();
  seconds += clock.seconds();
}

void pack(const PackedKeys& keys, std::span<const KVEntry> round, const ForwardMemory& memory, const Means& means) {
  std::vector<std::pair<const KVEntry*, std::int64_t>> tiles;
  for (const KVEntry& entry : round)
    for (std::int64_t t = 0; t < entry.tiles; ++t) tiles.emplace_back(&entry, t);
  run_tasks(
      static_cast<std::int64_t>(tiles.size()),
      [&](std::int64_t i, int worker) {
        const auto [entry, t] = tiles[static_cast<std::size_t>(i)];
        keys.pack(*entry, t, memory.scratch[static_cast<std::size_t>(worker)].rows);
      },
      means.executor);
}

/// All tiles of queries that read these entries, the longest first.
std::vector<ForwardTask> tasks_of(const ForwardPlan& plan, std::span<const KVEntry> round, const Visits& visits) {
  std::vector<ForwardTask> tasks;
  for (const KVEntry& entry : round)
    for (std::int64_t i = 0; i < readers_per_entry(plan.problem); ++i) {
      const Reader reader = reader_of(plan.problem, entry, i);
      const Sequence seq = sequence(plan.problem, reader.b);
      const std::int64_t count = plan.among.has(seq) ? ceil_div(seq.q_len, plan.cut.tile_q) : 0;
      for (std::int32_t t = 0; t < count; ++t)
        if (any_query(plan.problem, seq, std::int64_t{t} * plan.cut.tile_q, plan.cut.tile_q))
          tasks.push_back({&entry, reader, t, visits.cost(reader.b, reader.h, t)});
    }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const ForwardTask& a, const ForwardTask& b) { return a.cost > b.cost; });
  return tasks;
}

void attend(const ForwardState& state, std::span<const ForwardTask> tasks, const ForwardMemory& memory,
            const Means& means) {
  std::vector<std::int64_t> weights;
  for (const ForwardTask& task : tasks) weights.push_back(task.cost + 1);
  const Kit& kit = *state.plan.kit;
  run_tasks(
      static_cast<std::int64_t>(tasks.size()),
      [&](std::int64_t i, int worker) {
        if (kit.tiles_begin) kit.tiles_begin();
        run(state, tasks[static_cast<std::size_t>(i)], memory.scratch[static_cast<std::size_t>(worker)]);
        if (kit.tiles_end) kit.tiles_end();
      },
      means.executor, means.progress, weights);
}

void run(const ForwardPlan& plan, const Means& means) {
  CallMemory callers(means.workspace, plan.workspace);
  const ForwardMemory memory(callers.workspace(), plan);
  Stages stages;
  std::optional<Visits> visits;
  timed(stages.visits, [&] { visits.emplace(plan.call, plan.cut, means.executor, plan.among); });
  ForwardState state{.plan = plan,
                     .visits = *visits,
                     .slots = SlotArgs(plan.call),
                     .results = Results(plan.call, plan.kernels),
                     .keys = PackedKeys(plan, memory)};
  for (std::size_t i = 0; i < plan.rounds.size(); ++i) {
    const std::span<const KVEntry> round = plan.rounds[i];
    Means of_round = means;
    of_round.progress = part_of(means.progress, i, plan.rounds.size());
    state.keys.begin(round);
    timed(stages.pack, [&] { pack(state.keys, round, memory, means); });
    const std::vector<ForwardTask> tasks = tasks_of(plan, round, *visits);
    timed(stages.attend, [&] { attend(state, tasks, memory, of_round); });
  }
  if (means.stages) *means.stages = stages;
}

/// The ways in which a call is computed: some of its entries by decode, the others by tiles.
struct Ways {
  bool decode = false, tiles = false;
  Among tiled{};
};

Ways ways(const Call& call) {
  const Problem& problem = call.problem;
  const compiler::Held* held = problem.held();
  if (!can_decode(call) || (held && !held->part.empty())) return {.tiles = true};
  if (problem.q.length <= most_decoded) return {.decode = true};
  // Each entry chooses its own way if the call reads a cache, because packing many keys for one or two queries does not
  // pay; and with a fixed split size, because no entry's way may depend on other entries. Otherwise all entries are
  // computed by tiles.
  if (problem.q.packed() == problem.kv.packed() && call.forward().fixed_split_size == 0) return {.tiles = true};
  Ways out{.tiled = {.least = most_decoded + 1}};
  for (std::int64_t b = 0; b < problem.batch; ++b)
    (out.tiled.has(sequence(problem, b)) ? out.tiles : out.decode) = true;
  return out;
}

}  // namespace

std::size_t forward_workspace(const Call& call, const Means& means) {
  const Ways by = ways(call);
  // Both ways run one after another, in the same memory.
  return std::max(by.decode ? decode_workspace(call, means) : 0,
                  by.tiles ? ForwardPlan(call, means, by.tiled).workspace : 0);
}

void forward(const Call& call, const Means& means) {
  const Ways by = ways(call);
  if (by.decode && by.tiles) {
    Means silent = means;  // only the tiles, which take longer, report progress
    silent.progress = {};
    decode(call, silent);
  } else if (by.decode) {
    return decode(call, means);
  }
  const ForwardPlan plan(call, means, by.tiled);
  if (means.used) means.used->add(codegen::name_of(plan.kernels.isa), "tiles", plan.workspace);
  run(plan, means);
}

}  // namespace attune::runtime::cpu
