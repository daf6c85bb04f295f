// runtime/workspace_layout.h — a call's memory laid out once: counted first, then found in whatever memory it is given
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/workspace.h"

namespace attune::runtime {

/// A place for `count` elements in memory that is handed over later.
template <class T>
struct Room {
  std::size_t offset = 0;
  std::int64_t count = 0;

  /// Null where there is nothing to hold.
  T* in(std::byte* memory) const { return count > 0 ? reinterpret_cast<T*>(memory + offset) : nullptr; }
};

class WorkspaceLayout {
 public:
  template <class T>
  Room<T> take(std::int64_t count) {
    const Room<T> room{bytes_, count};
    bytes_ += aligned_bytes<T>(count);
    return room;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

}  // namespace attune::runtime
