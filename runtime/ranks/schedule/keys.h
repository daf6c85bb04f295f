// runtime/ranks/schedule/keys.h — moves keys from their owners to a rank, one step of a schedule after another
#pragma once

#include <array>

#include "runtime/ranks/carry/carrier.h"

namespace attune::runtime::ranks {

/// A tensor that can be exchanged: the call's own, or a copy of it with contiguous rows.
class Sendable {
 public:
  Sendable() = default;
  Sendable(const Carrier& carrier, const Rows& of, WorkspaceLayout& space);
  /// `entries`: the number of entries of the tensor.
  void place(const Rank& rank, std::byte* memory);
  bool is_copy() const { return region_.count > 0; }
  const Rows& rows() const { return rows_; }

 private:
  Rows rows_;
  Region<std::byte> region_;
};

/// The keys of a call's steps. The keys of the next step travel while the current step is computed, if the carrier can
/// do that.
class KeyTraffic {
 public:
  KeyTraffic(const Rank& rank, Carrier& carrier, const Rows& k, const Rows& v, std::vector<Wanted> steps);

  /// The number of buffers: the keys of at most two steps are in memory at a time.
  std::size_t buffers() const;
  /// The number of rows, over all heads and entries, that a buffer can hold.
  std::int64_t most_rows() const { return most_rows_; }
  /// Lays out the keys of steps first, then the sendable copies of the rank's own keys.
  void lay_out(WorkspaceLayout& space);
  /// Copies the rank's own keys if necessary, on the caller's stream.
  void place(std::byte* memory);
  /// Starts the transfer of the first step's keys, if the carrier transfers keys ahead.
  void start();
  /// The keys of a step. All later launches wait for them; the transfer of the next step's keys has started.
  Keys& next(std::size_t step);

 private:
  struct Buffer {
    Region<std::byte> k, v;
    Keys keys;
  };
  Moments bring(std::size_t step);
  void place(Buffer& buffer) const;
  Exchange exchange_of(const Keys& keys) const;

  const Rank& rank_;
  Carrier& carrier_;
  const bool one_;  ///< true if values are the first columns of keys
  std::vector<Wanted> steps_;
  std::array<Buffer, 2> buffers_;
  Rows k_, v_;
  Sendable own_k_, own_v_;
  std::byte* memory_ = nullptr;
  std::int64_t most_rows_ = 0;
  Moments here_;  ///< when the next step's keys have arrived
};

/// One step per group of heads, each with the keys that the rank needs.
std::vector<Wanted> by_groups(const Rank& rank, std::int64_t groups);

}  // namespace attune::runtime::ranks
