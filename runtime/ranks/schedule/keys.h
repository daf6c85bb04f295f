// runtime/ranks/schedule/keys.h — keys as they travel from their owners: one step of a schedule after another
#pragma once

#include <array>

#include "runtime/ranks/carry/carrier.h"

namespace attune::runtime::ranks {

/// A tensor that can be exchanged: the call's own, or a copy of it with contiguous rows.
class Sendable {
 public:
  Sendable() = default;
  Sendable(const Carrier& carrier, const Rows& of, WorkspaceLayout& space);
  /// `entries`: as many as the tensor has.
  void place(const Rank& rank, std::byte* memory);
  bool is_copy() const { return room_.count > 0; }
  const Rows& rows() const { return rows_; }

 private:
  Rows rows_;
  Room<std::byte> room_;
};

/// The keys of a call's steps. Those of the next step travel while one is computed with, if the carrier can do that.
class KeyTraffic {
 public:
  KeyTraffic(const Rank& rank, Carrier& carrier, const Rows& k, const Rows& v, std::vector<Wanted> steps);

  /// Keys of at most two steps are in memory at a time: so many buffers.
  std::size_t buffers() const;
  /// Rows of all heads and entries that a buffer has room for.
  std::int64_t most_rows() const { return most_rows_; }
  /// First the keys of steps, then copies of the rank's own that can be sent.
  void lay_out(WorkspaceLayout& space);
  /// Copies the rank's own keys where that is needed, on the caller's stream.
  void place(std::byte* memory);
  /// Brings the first step's keys, if they travel ahead.
  void start();
  /// The keys of a step, for which all launches wait from now on; those of the next one are on their way.
  Keys& next(std::size_t step);

 private:
  struct Buffer {
    Room<std::byte> k, v;
    Keys keys;
  };
  Moments bring(std::size_t step);
  void place(Buffer& buffer) const;
  Exchange exchange_of(const Keys& keys) const;

  const Rank& rank_;
  Carrier& carrier_;
  const bool one_;  ///< values are the first columns of keys
  std::vector<Wanted> steps_;
  std::array<Buffer, 2> buffers_;
  Rows k_, v_;
  Sendable own_k_, own_v_;
  std::byte* memory_ = nullptr;
  std::int64_t most_rows_ = 0;
  Moments here_;  ///< when the next step's keys have come
};

/// Groups of heads one after the other, each with the keys that the rank needs.
std::vector<Wanted> by_groups(const Rank& rank, std::int64_t groups);

}  // namespace attune::runtime::ranks
