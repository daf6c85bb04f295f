// runtime/cpu/forward.cpp — flash attention: keys and values are packed once, then every tile of queries walks over
// them
#include <algorithm>

#include "runtime/cpu/decode.h"
#include "runtime/cpu/forward_walk.h"

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
      const std::int64_t count = pieces(sequence(plan.problem, reader.b).q_len, plan.cut.tile_q);
      for (std::int32_t t = 0; t < count; ++t) tasks.push_back({&entry, reader, t, visits.cost(reader.b, reader.h, t)});
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

void run(const ForwardPlan& plan, const compiler::LoweredMod& lowered, const Forward& call, const Means& means) {
  CallMemory callers(means.workspace, plan.workspace);
  const ForwardMemory memory(callers.workspace(), plan);
  Stages stages;
  std::optional<Visits> visits;
  SlotArgs slots(lowered.mod, args_of(lowered, call));
  timed(stages.visits, [&] { visits.emplace(plan.problem, plan.cut, lowered, slots.args(), means.executor); });
  ForwardState state{.lowered = lowered,
                     .call = call,
                     .plan = plan,
                     .visits = *visits,
                     .slots = std::move(slots),
                     .results = Results(call, plan.problem, {means.isa, means.purpose}),
                     .keys = PackedKeys(plan, call, memory)};
  for (const std::span<const KVEntry> round : plan.rounds) {
    state.keys.begin(round);
    timed(stages.pack, [&] { pack(state.keys, round, memory, means); });
    const std::vector<ForwardTask> tasks = tasks_of(plan, round, *visits);
    timed(stages.attend, [&] { attend(state, tasks, memory, means); });
  }
  if (means.stages) *means.stages = stages;
}

}  // namespace

std::size_t forward_workspace(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem,
                              const Means& means) {
  return decodes(lowered, call, problem) ? decode_workspace(lowered, call, problem, means)
                                         : ForwardPlan(lowered, call, problem, means).workspace;
}

void forward(const compiler::LoweredMod& lowered, const Forward& call, const Problem& problem, const Means& means) {
  if (decodes(lowered, call, problem)) return decode(lowered, call, problem, means);
  const ForwardPlan plan(lowered, call, problem, means);
  if (means.used) *means.used = {std::string(codegen::name_of(means.isa)), "tiles", plan.workspace};
  run(plan, lowered, call, means);
}

}  // namespace attune::runtime::cpu
