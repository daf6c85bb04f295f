// runtime/attention/lowered.h — the lowered form of an Attention: for its own types, for types that calls bind, and for
// parts
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <attune/attention.h>

#include "compiler/lower.h"
#include "compiler/problem.h"
#include "compiler/slice.h"
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

/// Holds an atomic flag as a lock.
class Busy {
 public:
  explicit Busy(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) flag_.wait(true, std::memory_order_relaxed);
  }
  ~Busy() {
    flag_.clear(std::memory_order_release);
    flag_.notify_one();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic_flag& flag_;
};

inline std::shared_ptr<const Lowered> Memo::get(const Attention& attention) const {
  const Busy lock(busy_);
  if (!last_ || !last_->is_of(attention)) last_ = std::make_shared<const Lowered>(attention);
  return last_;
}

}  // namespace attune::detail
