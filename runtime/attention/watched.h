// runtime/attention/watched.h — reports a call to callbacks and to ATTUNE_VERIFY
#pragma once

#include <optional>

#include "runtime/attention/bind.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {

/// Reports a call to callbacks, and verifies some of its rows if ATTUNE_VERIFY is set.
class Watched {
 public:
  explicit Watched(Line at) : at_(at), watched_(wants(Fact::called)), verifies_(options().verify > 0) {
    if (watched_) clock_.emplace();
  }
  /// For the engine to fill in; null where it is not needed.
  Used* used() { return watched_ || verifies_ ? &used_ : nullptr; }

  enum class Whole : std::uint8_t { no, yes };
  /// `whole`: yes if this program has all rows of the call.
  void done(const Checked& checked, void* stream, Whole whole = Whole::yes) {
    if (watched_ || verifies_) report(checked, stream, whole);
  }

 private:
  void report(const Checked& checked, void* stream, Whole whole);

  Line at_;
  bool watched_, verifies_;
  std::optional<Clock> clock_;
  Used used_;
};

}  // namespace attune::runtime
