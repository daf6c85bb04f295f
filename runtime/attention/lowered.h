// runtime/attention/lowered.h — the lowered form of an Attention: for its own types, for types that calls bind, and for
// parts
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <attune/attention.h>

#include "compiler/bind.h"
#include "compiler/lower.h"
#include "compiler/problem.h"
#include "runtime/machine/mutex.h"

namespace attune::detail {

struct Lowered {
  // The components it was made of. They are kept so that no new component can get their addresses, which get()
  // compares.
  Score score;
  Mask mask;
  Prob prob;
  Sink sink;
  compiler::Mod written;         ///< as the user wrote it, for messages
  compiler::LoweredMod lowered;  ///< for engines

  /// `types`: the types of the captures that calls bind; empty: the types of the captures that the attention was made
  /// with.
  explicit Lowered(const Attention& a, std::span<const DType> types = {});

  bool is_of(const Attention& a) const {
    return score.identity() == a.score.identity() && mask.identity() == a.mask.identity() &&
           prob.identity() == a.prob.identity() && sink.identity() == a.sink.identity();
  }
  /// The lowered form for parts of calls.
  const compiler::LoweredMod& part(compiler::PartSink of_sink) const;
  /// The same components lowered for the types of these captures, once for each combination. Null if the types are this
  /// object's own.
  std::shared_ptr<const Lowered> typed(const Attention& a, std::span<const Tensor> captures) const;
  /// Refuses reads that are never in range. Sizes that passed once are not checked again.
  void check_reads(std::span<const Tensor> captures, const compiler::Problem& problem) const {
    if (!captures.empty()) check_sizes(captures, problem);
  }

 private:
  void check_sizes(std::span<const Tensor> captures, const compiler::Problem& problem) const;

  mutable runtime::Mutex typed_mutex_;
  mutable std::vector<std::shared_ptr<const Lowered>> typed_;
  mutable runtime::Mutex parts_mutex_;
  mutable std::array<std::optional<compiler::LoweredMod>, 2> parts_;
  mutable runtime::Mutex fine_mutex_;
  mutable std::optional<compiler::Problem> fine_;
  mutable std::vector<Tensor::Extents> fine_shapes_;
};

/// Holds a lock of what a memo keeps. Not a Mutex: each call takes it, and lowering is reported to callbacks.
class Busy {
 public:
  Busy(std::atomic<std::uint32_t>& holder, std::shared_ptr<const Lowered>& guarded) : holder_(holder) {
    const std::uint32_t mine = runtime::process_number();
    for (std::uint32_t seen = 0; !holder_.compare_exchange_strong(seen, mine, std::memory_order_acquire); seen = 0) {
      if (seen == mine) {
        holder_.wait(mine, std::memory_order_relaxed);
      } else if (holder_.compare_exchange_strong(seen, mine, std::memory_order_acquire)) {
        // A thread of the parent held it when this process was forked, and may have left half of a change.
        std::construct_at(&guarded);
        return;
      }
    }
  }
  ~Busy() {
    holder_.store(0, std::memory_order_release);
    holder_.notify_one();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic<std::uint32_t>& holder_;
};

inline std::shared_ptr<const Lowered> Memo::get(const Attention& attention) const {
  const Busy lock(busy_, last_);
  if (!last_ || !last_->is_of(attention)) last_ = std::make_shared<const Lowered>(attention);
  return last_;
}

}  // namespace attune::detail
