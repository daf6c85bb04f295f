// runtime/engines/emulated/shadow.h — who touched each two bytes of a block's shared memory last, and whether what
// touches them next is ordered after that
//
// Each warp has a clock, which goes on when it lets others know of what it did: at a barrier, or where its lanes meet.
// It also knows how far the clocks of other warps had gone when it last heard of them, directly or by others. An access
// that it has not heard of is a race with its own, unless both read.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "codegen/cuda/emulated/machine.h"

namespace attune::runtime::emulated {

using attune::emulated::Site;

/// How far each warp's clock is known to have gone, and behind them that of TMA.
struct Known {
  static constexpr std::size_t most_warps = 32, tma = most_warps;
  std::array<std::uint32_t, most_warps + 1> clock{};

  void hear(const Known& other) {
    for (std::size_t i = 0; i < clock.size(); ++i)
      if (other.clock[i] > clock[i]) clock[i] = other.clock[i];
  }
};

/// One of those who touch shared memory.
struct Toucher {
  std::uint8_t warp = 0, lane = 0;
  std::uint16_t fences = 0;  ///< how many proxy fences the thread had passed
};

/// What there is to say against an access; `what` is empty if nothing is.
struct Conflict {
  const char* what = nullptr;
  Toucher with{};
  Site at;
};

class Shadow {
 public:
  explicit Shadow(std::size_t bytes) : cells_((bytes + 1) / 2) {}

  /// An ordinary access of a thread whose warp knows so much.
  Conflict read(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site);
  Conflict write(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site);
  /// Whether some of it was never written as far as is known.
  bool unwritten(unsigned at, unsigned bytes) const;

  /// A copy that arrives by itself, from the time it is asked for to the time that its thread knows it is there.
  Conflict begin_copy(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site);
  void end_copy(unsigned at, unsigned bytes);

  /// A read of TMA, from when it is asked for until it is waited for.
  Conflict begin_store(unsigned at, unsigned bytes, Toucher by, const Known& known, Site site);
  void end_store(unsigned at, unsigned bytes);
  /// The same of a product. Kernels issue products whose results they do not use, of anything: what is wrong with their
  /// operands is theirs alone. A conflict: nothing has begun.
  Conflict begin_product(unsigned at, unsigned bytes, Toucher by, const Known& known);
  /// What overwrote the operand in the meantime.
  Conflict end_product(unsigned at, unsigned bytes);

  /// The fences that a thread had passed when it was heard of last.
  std::uint16_t& fences(Toucher of) { return fences_[std::size_t{of.warp} * 32 + of.lane]; }

 private:
  struct Cell {
    std::uint32_t written = 0, read = 0;  ///< clocks; 0: never
    Toucher writer{}, reader{};
    std::uint16_t write_site = 0, read_site = 0;
    std::uint8_t copies = 0, stores = 0, products = 0;  ///< under way
    bool by_copy = false;                               ///< the last write
    bool spoiled = false;                               ///< it came while a product was under way
  };

  std::uint16_t number_of(Site site);
  template <class Check>
  Conflict each(unsigned at, unsigned bytes, const Check& check);
  Conflict unfenced(const Cell& cell, Toucher by);
  Conflict against_write(const Cell& cell, Toucher by, const Known& known, const char* what) const;
  Conflict against_read(const Cell& cell, Toucher by, const Known& known, const char* what) const;

  std::vector<Cell> cells_;
  std::vector<Site> sites_{1};
  std::unordered_map<std::uint64_t, std::uint16_t> numbers_;
  std::array<std::uint16_t, 32 * (Known::most_warps + 1)> fences_{};
};

}  // namespace attune::runtime::emulated
