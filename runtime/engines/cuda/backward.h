// runtime/engines/cuda/backward.h — a backward on a device: its kernels, and its memory, laid out once
#pragma once

#include <memory>
#include <vector>

#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/keys.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/starts.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {

/// One of the kernels that walk pairs, with the lists that its tiles need, and its arguments.
struct BackwardWalk {
  Held<LoadedKernel> kernel;
  CoverLists lists{};
  Room<int> room{};
  BackwardArgs arguments{};
  CoverArgs cover{};

  BackwardWalk() = default;
  BackwardWalk(const KernelKey& key, const Call& of, const Means& means);
  void take(WorkspaceLayout& space) { room = space.take<int>(lists.ints()); }
  const codegen::KernelPlan& plan() const { return kernel->choice.plan; }
  /// Has it a kernel that takes the call, and lists that are no larger than tables may be?
  bool can() const;
  /// Its companions before, and itself; `arguments` are filled in but for the lists.
  void put(Launches& launches, Walk& walk, std::byte* memory, const Starts& starts);
};

/// `put` fills in the memory, and puts the launches on a stream.
class BackwardRun {
 public:
  BackwardRun(const Facts& device, const Call& of, const Means& means);
  std::size_t bytes() const { return space_.bytes(); }
  void put(std::byte* memory);
  /// Those that walk pairs, in the order of their launches.
  std::vector<Held<LoadedKernel>> walkers() const;

 private:
  bool asks_keys() const { return call_.dk.given() || call_.dv.given() || !captured_.empty(); }
  bool asks_queries() const { return call_.dq.given() || !captured_.empty(); }
  bool walks() const { return whole_.kernel || queries_.kernel || keys_.kernel; }
  /// Rows of all heads.
  std::int64_t rows() const { return p_.q_heads * (p_.q.packed() ? p_.q.total : p_.batch * p_.q.length); }

  void take_sums();
  /// One kernel for all, where there is one for the call; else one for each part.
  void choose(const BackwardWants& wants);
  void choose_parts(const BackwardWants& wants, const codegen::Wanted& wanted);
  /// Room for the results of a forward that this call computes first.
  void take_results();
  /// Compiles and loads what the first call of its kind needs, on several threads: a kernel takes seconds.
  void load_at_once(const BackwardWants& wants, const codegen::Wanted& wanted, bool may_be_whole) const;
  void put_walks(Launches& launches, std::byte* memory, const Starts& starts);
  std::vector<std::byte> user_bytes(std::byte* memory) const;
  void put_sums(std::byte* memory) const;

  /// The forward, into the workspace; with `memory` null, to ask what it needs.
  Forward forward_call(std::byte* memory) const {
    return first_forward(of_, own_o_.in(memory), own_lse_.in(memory), own_max_.in(memory));
  }
  Call first_call(const Forward& first) const;
  Means forward_means(std::span<std::byte> workspace) const {
    return {.workspace = workspace, .stream = means_.stream};
  }

  // ---- args_backward.cpp

  /// For one kernel that does all: sets of heads, and places for their tiles as BackwardArgs has them.
  std::int64_t sets_of_q() const { return p_.q_heads * (p_.q.packed() ? 1 : p_.batch); }
  std::int64_t sets_of_kv() const { return p_.kv_heads * (p_.kv_shared || p_.kv.packed() ? 1 : p_.batch); }
  std::int64_t places(const compiler::Positions& of, int positions) const;
  std::int64_t q_places() const { return places(p_.q, whole_.plan().tile.m); }
  std::int64_t kv_places() const { return places(p_.kv, whole_.plan().tile.n); }
  /// As cuda/spread_diagonals.cuh has them.
  std::int64_t diagonals() const;
  BackwardArgs args_of_call(std::byte* memory, const Starts& starts) const;
  /// Those of one kernel that does all: it adds dq up in memory, a tile of keys after another.
  void fill_whole(BackwardArgs& args, std::byte* memory) const;
  Walk walk_whole() const;
  // With the arguments of the one kernel, made of what both share.
  Walk walk_queries();
  Walk walk_keys();
  Walk walk_of(const BackwardWalk& of, std::int64_t blocks) const;

  const Call& of_;
  const Backward& call_;
  const compiler::Problem& p_;
  const Means& means_;
  const Facts& device_;
  std::vector<Captured> captured_;
  WorkspaceLayout space_;
  StartsRoom starts_;
  BackwardWalk whole_;           ///< where one kernel does all
  BackwardWalk queries_, keys_;  ///< else
  Held<Kernel> rows_kernel_, sums_kernel_;
  Room<unsigned long long> sums_;  ///< of all captured tensors
  Room<float> diagonals_;          ///< sums along diagonals, where one kernel does all
  Room<float> added_;              ///< sums of dq, where one kernel does all
  /// Of any kernel whether a result is non-finite; of one that does all its next item, its visits, its counts of added
  /// tiles.
  Room<unsigned> counters_;
  Room<float> delta_;
  Room<std::byte> own_o_;  ///< the forward's results, where the call has none
  Room<float> own_lse_, own_max_;
  Room<std::byte> forward_space_;
};

/// A number for each row of queries, of all heads.
Tensor rows_of(const Backward& call, const compiler::Problem& p, void* at);
SumsArgs sums_args(const Captured& one, std::byte* memory);

}  // namespace attune::runtime::cuda
