// tests/guarded.h — memory between guard pages: an access beyond its end crashes at once
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>

namespace attune::tests {

/// `count` elements that end where a page without access begins; another such page lies before the page they begin on.
/// All bytes start as `fill`, including those between that page and the first element.
template <class T>
class Guarded {
 public:
  static constexpr unsigned char fill = 0xa5;

  explicit Guarded(std::size_t count) : count_(count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inner = std::max<std::size_t>(1, (count * sizeof(T) + page - 1) / page) * page;
    mapped_ = inner + 2 * page;
    void* memory = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<unsigned char*>(memory);
    first_ = base_ + page;
    if (mprotect(first_, inner, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memset(first_, fill, inner);
    data_ = reinterpret_cast<T*>(first_ + inner - count * sizeof(T));
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() const { return data_; }
  T* begin() const { return data_; }
  T* end() const { return data_ + count_; }
  std::size_t size() const { return count_; }
  T& operator[](std::int64_t i) const { return data_[i]; }

  /// Whether all bytes before the first element are unchanged.
  bool front_untouched() const {
    return std::all_of(first_, reinterpret_cast<unsigned char*>(data_), [](unsigned char c) { return c == fill; });
  }

 private:
  std::size_t count_, mapped_;
  unsigned char *base_, *first_;
  T* data_;
};

}  // namespace attune::tests
