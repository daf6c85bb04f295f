// runtime/attention/offline/purpose.h — what a call needs kernels for: records and Errors describe it
#pragma once

#include <atomic>

#include "runtime/attention/offline/request.h"

namespace attune::runtime {

/// Lives on the stack of a call and is handed to everything that may build a kernel for it. It allocates nothing, and
/// describes the call only if a record or an Error needs the description.
class Purpose {
 public:
  /// `describe` () -> Request is kept by reference: it must outlive this.
  template <class Describe>
  explicit Purpose(const Describe& describe)
      : describe_(&describe), call_([](const void* f) -> Request { return (*static_cast<const Describe*>(f))(); }) {}
  template <class Describe>
  explicit Purpose(const Describe&& temporary) = delete;
  Purpose(const Purpose&) = delete;
  Purpose& operator=(const Purpose&) = delete;

  Request describe() const { return call_(describe_); }

 private:
  friend void record_purpose(const Purpose* purpose);

  const void* describe_;
  Request (*call_)(const void*);
  mutable std::atomic<bool> recorded_ = false;
};

/// Adds a line to the file of ATTUNE_RECORD, if there is one: once for a purpose. Throws an Error if it cannot be
/// written. `purpose` may be null: then nothing is recorded.
void record_purpose(const Purpose* purpose);
/// Throws the Error of a kernel that is nowhere while compiling is off. `purpose` may be null.
[[noreturn]] void refuse_to_compile(const Purpose* purpose);

}  // namespace attune::runtime
