// runtime/machine/purpose.h — what a kernel is needed for, in words: records and Errors quote it
#pragma once

#include <atomic>
#include <string>

namespace attune::runtime {

/// Lives on the stack of a call and is handed to everything that may build a kernel for it. The call is described only
/// if a record or an Error needs the description.
class Purpose {
 public:
  struct Text {
    std::string record;   ///< one line of JSON
    std::string words;    ///< for people
    std::string command;  ///< the command that compiles the kernel beforehand
  };
  explicit Purpose(const Purpose* first = nullptr) : of_forward(first) {}
  Purpose(const Purpose&) = delete;
  Purpose& operator=(const Purpose&) = delete;

  virtual Text describe() const = 0;

  const Purpose* const of_forward;  ///< of the forward that a backward computes first; null where there is none

 protected:
  ~Purpose() = default;

 private:
  friend void record_purpose(const Purpose* purpose);

  mutable std::atomic<bool> recorded_ = false;
};

/// Adds a line to the file of ATTUNE_RECORD, if there is one: once for a purpose. Throws an Error if it cannot be
/// written. `purpose` may be null: then nothing is recorded.
void record_purpose(const Purpose* purpose);
/// Throws the Error for a kernel that is found nowhere while compiling is off. `purpose` may be null.
[[noreturn]] void refuse_to_compile(const Purpose* purpose);

}  // namespace attune::runtime
