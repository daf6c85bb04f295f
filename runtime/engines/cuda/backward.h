// runtime/engines/cuda/backward.h — a backward on a device: its kernels, and its memory, laid out once
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/keys.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/starts.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {

/// A backward kernel that visits pairs, the lists that its tiles need, and its arguments.
struct BackwardWalk {
  Held<LoadedKernel> kernel;
  CoverLists lists{};
  Region<int> region{};
  BackwardArgs arguments{};
  CoverArgs cover{};

  BackwardWalk() = default;
  BackwardWalk(const KernelKey& key, const Call& of, const Means& means);
  void take(WorkspaceLayout& space) { region = space.take<int>(lists.ints()); }
  const codegen::KernelPlan& plan() const { return kernel->choice.plan; }
  /// True if a kernel supports this call and its lists fit.
  bool can() const;
  /// Adds the companions that run before the kernel, and the kernel; `arguments` are complete except for the lists.
  void put(Launches& launches, Walk& walk, std::byte* memory, const Starts& starts);
};

/// True if the walk's operands are f32 that another kernel splits.
inline bool splits(const BackwardWalk& walk) { return walk.kernel && walk.plan().tile.parts > 0; }

/// A backward on a device. `put` assigns the memory and enqueues the launches on a stream.
class BackwardRun {
 public:
  BackwardRun(const Facts& device, const Call& of, const Means& means);
  std::size_t bytes() const { return space_.bytes(); }
  void put(std::byte* memory);
  /// The kernels that visit pairs, in the order of their launches.
  std::vector<Held<LoadedKernel>> walkers() const;

 private:
  bool asks_keys() const { return call_.dk.given() || call_.dv.given() || !captured_.empty(); }
  bool asks_queries() const { return call_.dq.given() || !captured_.empty(); }
  bool walks() const { return whole_.kernel || queries_.kernel || keys_.kernel; }
  /// The number of rows of all heads.
  std::int64_t rows() const { return p_.q_heads * (p_.q.packed() ? p_.q.total : p_.batch * p_.q.length); }

  /// Takes workspace for the sums of captured gradients, except the one that is made of stored dS.
  void take_sums();
  /// Chooses one kernel for the whole backward if one supports the call; else one kernel for each part.
  void choose(const codegen::CallSpec& asked);
  void choose_parts(const codegen::CallSpec& asked);
  /// Takes workspace for the results of a forward that this call computes first.
  void take_results();
  /// Compiles and loads the kernels of the first call of its kind on several threads, since each kernel takes seconds.
  void load_at_once(const codegen::CallSpec& asked, bool may_be_whole) const;
  void put_walks(Launches& launches, std::byte* memory, const Starts& starts);
  /// The user's struct; where launches divide the keys, of the launch that begins with this tile of keys.
  std::vector<std::byte> user_bytes(std::byte* memory, std::int64_t first_tile = 0) const;
  void put_sums(std::byte* memory) const;

  /// The forward whose results go to the workspace. With `memory` null it only serves to compute the forward's
  /// workspace.
  Forward forward_call(std::byte* memory) const {
    return first_forward(of_, own_o_.in(memory), own_lse_.in(memory), own_max_.in(memory));
  }
  Call first_call(const Forward& first) const;
  Means forward_means(std::span<std::byte> workspace) const {
    return {.workspace = workspace, .stream = means_.stream};
  }

  // ---- args_backward.cpp

  /// For the whole-backward kernel: the number of sets of heads, and the places for their tiles, as in BackwardArgs.
  std::int64_t sets_of_q() const { return p_.q_heads * (p_.q.packed() ? 1 : p_.batch); }
  std::int64_t sets_of_kv() const { return p_.kv_heads * (p_.kv_shared || p_.kv.packed() ? 1 : p_.batch); }
  std::int64_t places(const compiler::Positions& of, int positions) const;
  /// Where the whole-backward kernel's counters are: a flag that a result is non-finite, the next item, the number of
  /// visits, the tiles of keys added to each tile of dq, and the next item of each further launch.
  enum Counter : std::int64_t { non_finite, next_item, visits, added_tiles };
  std::int64_t next_items_of_further() const { return added_tiles + q_tiles(); }
  std::int64_t q_tiles() const { return sets_of_q() * q_places(); }
  std::int64_t q_places() const { return places(p_.q, whole_.plan().tile.m); }
  std::int64_t kv_places() const { return places(p_.kv, whole_.plan().tile.n); }
  /// As in cuda/spread_diagonals.cuh.
  std::int64_t diagonals() const;
  BackwardArgs args_of_call(std::byte* memory, const Starts& starts) const;
  /// Fills in the arguments of the whole-backward kernel, which accumulates dq in memory, one tile of keys after
  /// another.
  void fill_whole(BackwardArgs& args, std::byte* memory) const;
  Walk walk_whole() const;

  // ---- stored_ds.cpp

  /// The gradient of a dense bias, for a kernel that stores dS.
  struct DenseGradient {
    const Captured* of = nullptr;                    ///< null: no kernel stores dS
    std::uint32_t slot = 0;                          ///< of `of`: the one that the score reads
    Tensor as_pairs;                                 ///< the gradient as [batch, head, query, key]
    std::array<std::int64_t, 4> groups{1, 1, 1, 1};  ///< how many of each share an element
    bool is_ds = false;                              ///< dS is stored straight into it
    std::int64_t tiles = 0;                          ///< of keys, in one launch
    bool cleared = false;                            ///< pairs of tiles that no item visits are 0
  };
  /// Plans how the gradient is made of stored dS. False if the kernel cannot make it.
  bool plan_ds();
  bool stores_ds() const { return dense_.of != nullptr; }
  /// dS of one launch: the gradient itself, or workspace.
  Tensor ds_tensor(std::byte* memory) const;
  StoredDs stored_ds(std::byte* memory, std::int64_t first_tile) const;
  void clear_ds(Launches& launches, std::byte* memory) const;
  /// The first tile of keys of the first launch: launches go from the last keys to the first.
  std::int64_t first_tile() const { return stores_ds() ? (kv_places() - 1) / dense_.tiles * dense_.tiles : 0; }
  /// Enqueues the launches of the keys before the first launch's, each with its part of the gradient.
  void put_other_keys(std::byte* memory) const;
  // Each has the arguments of one kernel, made from the arguments that both share.
  Walk walk_queries();
  Walk walk_keys();
  Walk walk_of(const BackwardWalk& of, std::int64_t blocks) const;
  /// The operands of split f32, for the kernels of the queries and of the keys.
  void take_split();
  SplitRowsArgs split_args(std::byte* memory) const;
  /// Maps of the tensors that a kernel reads by TMA; of split operands also their factors.
  void put_maps(BackwardArgs& args, const BackwardWalk& of) const;

  const Call& of_;
  const Backward& call_;
  const compiler::Problem& p_;
  const Means& means_;
  const Facts& device_;
  std::vector<Captured> captured_;
  WorkspaceLayout space_;
  StartsRoom starts_;
  BackwardWalk whole_;           ///< if one kernel computes the whole backward
  BackwardWalk queries_, keys_;  ///< otherwise
  Held<Kernel> rows_kernel_, sums_kernel_;
  Region<unsigned long long> sums_;  ///< of all captured tensors
  Region<float> diagonals_;          ///< sums along diagonals, for the whole-backward kernel
  DenseGradient dense_{};
  Region<unsigned short> ds_;  ///< dS, for the whole-backward kernel, unless it is stored into a gradient
  Region<float> added_;        ///< sums of dq, for the whole-backward kernel
  /// The flag of non-finite results; for the whole-backward kernel all of Counter.
  Region<unsigned> counters_;
  /// If operands of f32 are split: q, k, v and grad_o, and the factors of their rows.
  std::array<Region<unsigned short>, 4> split_{};
  std::array<Region<float>, 4> factors_{};
  SplitRowsArgs split_rows_{};
  Region<float> delta_;
  Region<std::byte> own_o_;  ///< the forward's results, if the call gives none
  Region<float> own_lse_, own_max_;
  Region<std::byte> forward_space_;
};

/// A number for each row of queries, of all heads.
Tensor rows_of(const Backward& call, const compiler::Problem& p, void* at);
SumsArgs sums_args(const Captured& one, std::byte* memory);

}  // namespace attune::runtime::cuda
