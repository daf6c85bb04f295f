// runtime/platform/emulated/grid.h — an emulated launch: its blocks, their warps and threads, the barriers that they
// wait for, and tensor maps
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "codegen/cuda/emulated/machine.h"
#include "runtime/platform/emulated/shadow.h"

namespace attune::runtime::emulated {

/// The state of a suspended flow of control: its stack pointer, with its registers saved on the stack.
struct Fiber {
  void* at = nullptr;
};

/// Resumes `to` where it stopped; returns when something resumes `from`.
void switch_fibers(Fiber& from, const Fiber& to);

/// Memory for stacks, which are reused. Each of the first 16384 has a guard page below it; of those after them, 32
/// adjacent ones share a guard page.
class Stacks {
 public:
  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  static constexpr std::size_t bytes = 256 << 10;
  /// Returns the lowest address of a stack. Throws an Error if the process may have no more memory or mappings.
  std::byte* take();
  void give_back(std::byte* stack) { free_.push_back(stack); }

 private:
  void add_slab();

  std::vector<std::byte*> slabs_, free_;
};

/// A fiber that begins with body(), which must not return, on this stack.
Fiber new_fiber(std::byte* stack, void (*body)());
/// Throws the Error of processors that have no fibers.
[[noreturn]] void refuse_processor();

/// A tensor map as the emulated driver writes it, for the emulated TMA. Dimensions start with the innermost one, whose
/// stride is one element.
struct Map {
  static constexpr std::uint32_t right = 0x6d617073;
  std::uint32_t magic = 0;
  std::uint16_t rank = 0, element = 0;  ///< bytes of an element
  const std::byte* first = nullptr;
  std::array<std::uint64_t, 4> strides{};  ///< bytes, of the dimensions from 1 on
  std::array<std::uint32_t, 5> extents{};
  std::array<std::uint16_t, 6> box{};
  std::array<std::byte, 48> unused{};

  unsigned bytes() const {
    unsigned out = element;
    for (std::size_t i = 0; i < rank; ++i) out *= box[i];
    return out;
  }
};
static_assert(sizeof(void*) != 8 || sizeof(Map) == 128);

inline Map map_of(const std::array<std::byte, 128>& bytes) { return std::bit_cast<Map>(bytes); }

using attune::emulated::Box, attune::emulated::Extent, attune::emulated::GroupProduct, attune::emulated::Kernel,
    attune::emulated::Machine, attune::emulated::Operands, attune::emulated::Product, attune::emulated::Site,
    attune::emulated::Thread, attune::emulated::Together, attune::emulated::Touch;

struct Block;
struct Warp;

/// Bytes that a thread copies into shared memory with cp.async.
struct AsyncCopy {
  unsigned to;
  const void* from;
  int bytes, count;
  bool arrived = false;
};

/// A TMA store of a thread from shared memory: a box, or contiguous bytes.
struct Store {
  std::optional<Box> box{};
  std::array<std::byte, 128> map{};  ///< of the box
  void* to = nullptr;
  unsigned from = 0, bytes = 0;
  bool add = false;
  std::vector<std::byte> taken{};  ///< the bytes that were read; empty: not read yet
  bool waited_for = false;         ///< true if a thread has waited until it was read
  Site at;
};

struct Lane : Thread {
  Fiber fiber;
  std::byte* stack = nullptr;
  Warp* warp = nullptr;
  bool ended = false;
  // The thing that it waits for, for reports.
  const char* waits_for = "";
  Site waits_at;
  int votes = 0;                   ///< votes of the last barrier that it has passed
  std::uint16_t fences_heard = 0;  ///< number of proxy fences it had passed when it last learned of others
  // The groups of its copies: the last one is not committed yet.
  std::deque<std::vector<AsyncCopy>> copies{1};
  std::deque<std::vector<Store>> stores{1};

  Thread& thread() { return *this; }
};

/// A collective operation of a warp's lanes, which runs as soon as all have arrived.
struct Meeting {
  unsigned mask = 0, here = 0;
  const char* what = "";
  Together* run = nullptr;
  Site at;
  std::array<void*, 32> parts{};
  bool orders = false;  ///< true if it orders the lanes' memory accesses
};

/// Accumulators of a warp while products are under way: the lanes then see unknown_number.
struct Accumulator {
  std::array<float*, 32> at{};
  int numbers = 0;  ///< of each lane
  std::vector<float> value{};
  int under_way = 0;
};
/// 16 bytes of an operand in shared memory. Rows are rows of A or columns of B; B's columns are counted after A's 16
/// rows.
struct OperandPiece {
  unsigned at, first, count;
};
struct PendingProduct {
  GroupProduct what;  ///< of the first lane
  std::size_t accumulator;
  std::vector<std::uint32_t> a{};  ///< of all lanes, where A is in registers
  std::vector<float> read{};       ///< the operands, where they were read early: A, then B
  std::vector<OperandPiece> reads{};
  /// Rows of A, then columns of B, that it reads while unwritten or being written: results are unknown_number there.
  std::vector<bool> spoiled{};
  bool doubted = false;
  Site at;
};

struct Warp {
  Block* block = nullptr;
  int index = 0;  ///< in its block
  unsigned live = 0, ready = 0;
  Known known{};
  bool listed = false;  ///< true if it is in the list of warps with a ready lane
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<Meeting> meetings;
  std::vector<Accumulator> accumulators;
  std::deque<std::vector<PendingProduct>> products{1};  ///< by group; the last one is not committed yet

  bool has(int lane) const { return live >> lane & 1; }
};

/// One of the sixteen barriers of a block.
struct NamedBarrier {
  int threads = 0, here = 0, votes = 0;  ///< threads 0: no one is here
  Known known{};
  Site at;
  std::vector<Lane*> waiting;
};

/// An mbarrier.
struct PhaseBarrier {
  unsigned arrivals = 0, missing = 0;
  long long bytes = 0;  ///< bytes that have not arrived yet
  unsigned phase = 0;   ///< number of completed phases
  Site made, last;
  Known known{}, next{};  ///< what threads that arrived knew: in completed phases; in the current one
  std::vector<std::pair<unsigned, unsigned>> copies{};  ///< that have arrived for it: places and lengths in bytes
  std::vector<std::pair<Lane*, unsigned>> waiting{};    ///< and the parity
};

/// A box on its way into shared memory, or bytes in a row.
struct Load {
  Box box;
  std::array<std::byte, 128> map{};
  const void* from = nullptr;  ///< of bytes in a row
  unsigned bytes = 0;
  unsigned into, barrier;
  Site at;
  Known known{};  ///< the knowledge of its thread at the request
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Lane*> waiting;
  int here = 0, live = 0;
};

struct Block {
  Cluster* cluster = nullptr;
  int rank = 0;  ///< in its cluster
  Extent index{};
  std::vector<std::byte> memory;  ///< shared memory, by its addresses
  std::unique_ptr<Shadow> shadow;
  unsigned dynamic_end = 0, end = 0;
  std::unordered_map<std::string, unsigned> variables;
  std::vector<std::unique_ptr<Warp>> warps;
  std::array<NamedBarrier, 16> barriers{};
  std::unordered_map<unsigned, PhaseBarrier> phases;
  std::vector<Load> loads;
  int live = 0;
};

/// The value of numbers that were not computed or written yet: finite, because kernels recompute tiles with infinities
/// or NaN, and large in every type.
inline constexpr float unknown_number = 12345.678f;
inline constexpr std::byte unknown_byte{0x5a};
/// The first address of dynamic shared memory: addresses below it belong to the system.
inline constexpr unsigned first_shared = 1024;
/// Room for variables after dynamic shared memory.
inline constexpr unsigned room_for_variables = 64 << 10;

struct LaunchOf {
  const Kernel* kernel = nullptr;
  void* const* arguments = nullptr;
  Extent blocks{1, 1, 1};
  int threads = 0;
  unsigned shared_bytes = 0;
  int cluster = 1;
  int sms = 1;
  std::uint64_t seed = 0;
  /// Set if it starts before the previous kernel has ended: makes that kernel's writes visible. Called once.
  std::function<void()> end_previous{};
};
/// A launch that has ended.
struct Ended {
  bool let_next_start = false;
  bool had_waited = false;  ///< true if all earlier kernels had ended when it first let the next one start
};

/// Runs all blocks; throws an Error if the kernel does what a GPU does not allow.
Ended run(const LaunchOf& launch);

}  // namespace attune::runtime::emulated
