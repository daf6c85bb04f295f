// runtime/engines/workspace.h — memory for one call, allocated piece by piece from the caller's bytes or from attune's
// own
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>

namespace attune::runtime {

/// Fits the widest registers, and keeps neighbours on separate cache lines.
inline constexpr std::size_t alignment = 64;

/// A place for `count` elements in memory that is provided later.
template <class T>
struct Region {
  std::size_t offset = 0;
  std::int64_t count = 0;

  /// Null if there are no elements. With null memory the result is an address that may not be read, which only
  /// describes a call: the address is therefore computed with integers.
  T* in(std::byte* memory) const {
    return count > 0 ? reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(memory) + offset) : nullptr;
  }
};

/// The layout of a call's memory, computed before the memory exists: one aligned piece after another.
class WorkspaceLayout {
 public:
  /// The next piece begins at a multiple of `to`, a multiple of `alignment`, if the memory does.
  void align(std::size_t to) { bytes_ = (bytes_ + to - 1) / to * to; }
  template <class T>
  Region<T> take(std::int64_t count) {
    const Region<T> region{bytes_, count};
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + alignment - 1) / alignment * alignment;
    return region;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// Hands out pieces of memory. Without memory it only counts bytes. Take the same pieces in the same order, first to
/// count and then with memory: the offsets are the same.
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(std::span<std::byte> memory) : begin_(memory.data()) {}

  template <class T>
  T* take(std::int64_t count) {
    const Region<T> region = layout_.take<T>(count);
    return begin_ ? reinterpret_cast<T*>(begin_ + region.offset) : nullptr;
  }
  /// As in WorkspaceLayout.
  void align(std::size_t to) { layout_.align(to); }
  std::size_t used() const { return layout_.bytes(); }

 private:
  std::byte* begin_ = nullptr;
  WorkspaceLayout layout_;
};

/// Bytes that attune allocates: aligned, not initialised.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::size_t size) : size_(size), bytes_(new (std::align_val_t(alignment)) std::byte[size]) {}
  std::span<std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { operator delete[](p, std::align_val_t(alignment)); }
  };
  std::size_t size_ = 0;
  std::unique_ptr<std::byte[], Free> bytes_;
};

/// The caller's memory. Throws an Error if it is too small or not aligned. `ask`: the function that returns the
/// required size.
std::span<std::byte> checked_workspace(
    std::span<std::byte> callers, std::size_t needed,
    std::string_view ask = "Attention::workspace, attune_prepare in C or prepare in Python for the call and its "
                           "resources");
/// The caller's memory if given, else `own`.
Workspace workspace_of(std::span<std::byte> callers, const Memory& own, std::size_t needed);

/// A call's memory for as long as this lives: the caller's if it is given, else attune's own.
class CallMemory {
 public:
  CallMemory(std::span<std::byte> callers, std::size_t needed)
      : own_(callers.empty() ? Memory(needed) : Memory()), workspace_(workspace_of(callers, own_, needed)) {}
  Workspace& workspace() { return workspace_; }

 private:
  Memory own_;
  Workspace workspace_;
};

}  // namespace attune::runtime
