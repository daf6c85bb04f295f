// codegen/cuda/emulated/machine.h — what a kernel that was compiled for the host calls, and what answers: the emulated
// multiprocessor
//
// Both sides include this: a kernel's page, by way of builtins.cuh, and runtime/platform/emulated. Only C++ is used.
#pragma once

namespace attune::emulated {

/// The place in a kernel's source that makes a request.
struct Site {
  const char* file = "";
  int line = 0;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

struct Extent {
  unsigned x, y, z;
};

/// A thread as its kernel sees it.
struct Thread {
  Extent index, block, threads, blocks;
  int lane;
};

/// A product of a warp: c (16 x 8) += a (16 rows by 32 bytes) b (32 bytes by 8 columns).
struct Product {
  float* c;
  const unsigned* a;
  unsigned b[2];
};
enum class Operands { bf16, f16, tf32, e4m3 };

/// A product of a warpgroup: acc[64 x n] (+)= A[64 x k] B[k x n], `steps` times, each further along k.
struct GroupProduct {
  float* acc;
  const unsigned* a;              ///< in registers, 4 words a step; null: read from a_at
  unsigned long long a_at, b_at;  ///< descriptors
  int n, steps;
  int a_step, b_step;  ///< added to a descriptor per step
  bool a_transposed, b_transposed;
  bool add;  ///< false: acc is overwritten
  Operands operands;
};

/// A box of a tensor, copied from or to shared memory.
struct Box {
  const void* map;
  int at[5];
  int rank;
};

/// The kind of an access to shared memory.
/// flag: an access to a word that other threads access at the same time.
enum class Touch { read, write, flag };

/// An operation of several lanes: each lane contributes its part, and `run` gets the parts of all lanes of `mask`, null
/// for lanes that have ended.
using Together = void(void* const* parts, unsigned mask);

/// Every function runs on the stack of the calling thread, and may run other threads before it returns.
struct Machine {
  const Thread* now;  ///< the running thread

  // Memory of the block.
  unsigned char* (*dynamic_shared)();
  /// A variable of the block, by its name: the same for all threads.
  void* (*shared_variable)(const char* name, unsigned bytes, unsigned alignment);
  unsigned (*shared_address)(const void* pointer, Site at);
  void* (*shared_pointer)(unsigned address, Site at);
  /// The host address of these bytes; refuses memory that no kernel may touch.
  void* (*shared)(unsigned address, unsigned bytes, Touch touch, Site at);
  void* (*cluster_shared)(unsigned address, unsigned bytes, Site at);
  unsigned (*address_in_cluster)(unsigned mine, int nth, Site at);

  // Threads of a warp, of a block, of a cluster.
  void (*together)(unsigned mask, const char* what, Together* run, void* mine, Site at);
  /// A barrier of the block: returns how many of the threads said yes. `threads` 0: all that have not ended.
  int (*meet)(int barrier, int threads, bool wait, bool yes, Site at);
  void (*meet_cluster)(Site at);
  void (*leave)();  ///< does not return
  /// Lets other threads run, because this thread waits for them.
  void (*let_others_run)(const char* what, const void* watched, Site at);

  // Products.
  void (*multiply)(Operands operands, Product* mine, Site at);
  void (*multiply_group)(const GroupProduct* mine, Site at);
  void (*group_fence)(Site at);
  void (*group_commit)(Site at);
  void (*group_wait)(int pending, Site at);

  // Copies of a thread that arrive by themselves.
  void (*copy_async)(unsigned to, const void* from, int bytes, int count, Site at);
  void (*copy_commit)(Site at);
  void (*copy_wait)(int pending, Site at);

  // TMA.
  void (*load_box)(unsigned into, const Box* box, unsigned barrier, Site at);
  void (*store_box)(const Box* box, unsigned from, Site at);
  void (*load_bulk)(unsigned into, const void* from, unsigned bytes, unsigned barrier, Site at);
  void (*store_bulk)(void* to, unsigned from, unsigned bytes, bool add, Site at);
  void (*store_commit)(Site at);
  void (*store_wait)(bool read_only, Site at);
  void (*proxy_fence)(bool all_memory, Site at);

  // Barriers in shared memory.
  void (*barrier_init)(unsigned barrier, unsigned arrivals, Site at);
  void (*barrier_arrive)(unsigned barrier, unsigned bytes, Site at);
  void (*barrier_wait)(unsigned barrier, unsigned parity, Site at);

  // Kernels that start before the one before them has ended.
  void (*let_next_start)(Site at);
  void (*wait_for_kernel_before)(Site at);

  // Operations that the host rounds differently when denormals count as 0.
  double (*f64_of_f32)(float x);
  float (*f32_of_f64)(double x, bool towards_zero);
};

/// The only symbol that a kernel's library exports is one of these, attune_emulated_kernel. The program may export any
/// other name, and a kernel would use the program's symbol instead of its own.
struct Kernel {
  const char* name;
  void (*run)(void* const* arguments);
  unsigned (*bytes_of_argument)(unsigned nth);  ///< 0 past the last argument
  Machine** machine;                            ///< set before each launch
};

}  // namespace attune::emulated
