// runtime/offline/purpose.h — what the kernels that a thread asks for are for: records say it, and so do Errors
#pragma once

#include <functional>

#include "runtime/offline/request.h"

namespace attune::runtime {

class Purpose;

/// Adds a line to the file of ATTUNE_RECORD, if there is one: once for a purpose. An Error if it cannot be written.
void record_purpose();
/// Throws the Error of a kernel that is nowhere while compiling is off.
[[noreturn]] void refuse_to_compile();

/// Holds for the thread that made it, for as long as it lives. The latest holds.
class Purpose {
 public:
  /// `describe` is called when somebody wants to know.
  explicit Purpose(std::function<Request()> describe);
  ~Purpose();
  Purpose(const Purpose&) = delete;
  Purpose& operator=(const Purpose&) = delete;

 private:
  friend void record_purpose();
  friend void refuse_to_compile();

  std::function<Request()> describe_;
  Purpose* before_;
  bool recorded_ = false;
};

}  // namespace attune::runtime
