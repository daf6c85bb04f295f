// runtime/platform/emulated/shadow.h — a race detector: the last accesses to each two bytes of a block's shared memory,
// and whether the next one is ordered after them
//
// Vector clocks: each warp has a clock, which advances when the warp publishes its accesses: at a barrier, or where its
// lanes meet. A warp also knows the value of each other warp's clock when it last learned of it, directly or through
// others. An access that a warp has not learned of races with the warp's own access, unless both are reads.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "codegen/cuda/emulated/machine.h"

namespace attune::runtime::emulated {

using attune::emulated::Site;

/// The known value of each warp's clock, followed by the clock of TMA.
struct Known {
  static constexpr std::size_t most_warps = 32, tma = most_warps;
  std::array<std::uint32_t, most_warps + 1> clock{};

  void hear(const Known& other) {
    for (std::size_t i = 0; i < clock.size(); ++i)
      if (other.clock[i] > clock[i]) clock[i] = other.clock[i];
  }
};

/// A thread, or TMA, that accesses shared memory.
struct Toucher {
  std::uint8_t warp = 0, lane = 0;
  std::uint16_t fences = 0;  ///< number of proxy fences that the thread had passed
  bool operator==(const Toucher&) const = default;
};

/// The reason why an access is wrong; `what` is empty if it is not.
struct Conflict {
  const char* what = nullptr;
  Toucher with{};
  Site at;
};

class Shadow {
 public:
  explicit Shadow(std::size_t bytes) : cells_((bytes + 1) / 2) {}

  /// An ordinary access of a thread whose warp knows `known`.
  Conflict read(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site);
  Conflict write(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site);
  /// True if some of these bytes were never written, as far as the shadow knows.
  bool unwritten(unsigned at, unsigned bytes) const;

  /// An asynchronous copy, from its request until its thread knows that it has arrived.
  Conflict begin_copy(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site);
  void end_copy(unsigned at, unsigned bytes);

  /// A read by TMA, from its request until it is waited for.
  Conflict begin_store(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site);
  void end_store(unsigned at, unsigned bytes);
  /// The same for a product. Kernels issue products whose results they do not use, so wrong operands only make that
  /// product's result unknown. If there is a conflict, no read has begun.
  Conflict begin_product(unsigned at, unsigned bytes, Toucher by, const Known& known);
  /// The conflict if the operand was overwritten in the meantime.
  Conflict end_product(unsigned at, unsigned bytes);

  /// The number of proxy fences that a thread had passed when others last learned of it.
  std::uint16_t& fences(Toucher of) { return fences_[std::size_t{of.warp} * 32 + of.lane]; }

 private:
  struct Cell {
    std::uint32_t written = 0, read = 0;  ///< clocks; 0: never
    Toucher writer{}, reader{};
    std::uint16_t write_site = 0, read_site = 0;
    std::uint8_t copies = 0, stores = 0, products = 0;  ///< under way
    bool by_copy = false;                               ///< true if the last write was a copy
    bool spoiled = false;                               ///< true if the last write came while a product was reading

    /// True if all that begin_product() checks is the same, as in most cells of an operand.
    bool same_write(const Cell& other) const {
      return written == other.written && copies == other.copies && by_copy == other.by_copy && writer == other.writer;
    }
  };

  std::uint16_t number_of(Site site);
  template <class Check>
  Conflict each(unsigned at, unsigned bytes, const Check& check);
  Conflict unfenced(const Cell& cell, Toucher by);
  Conflict against_write(const Cell& cell, Toucher by, const Known& known, const char* what) const;
  Conflict against_read(const Cell& cell, Toucher by, const Known& known, const char* what) const;

  std::vector<Cell> cells_;
  std::vector<Site> sites_{1};
  std::uint16_t last_ = 0;  ///< the number that number_of() returned last
  std::unordered_map<std::uint64_t, std::uint16_t> numbers_;
  std::array<std::uint16_t, 32 * (Known::most_warps + 1)> fences_{};
};

}  // namespace attune::runtime::emulated
