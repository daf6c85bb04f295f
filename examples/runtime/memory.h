// examples/runtime/memory.h — the program's own memory: blocks of a device, handed out and taken back by the step
#pragma once

#include <attune/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace runtime {

/// Memory of one device, handed out front to back and taken back all at once. After the largest step so far, a step
/// allocates nothing.
class Arena {
 public:
  explicit Arena(attune::Device device) : device_(device) {}

  /// Aligned to 64 bytes, as attune wants its workspace; holds anything at first.
  std::span<std::byte> bytes(std::size_t count) {
    const std::size_t room = (count + 63) / 64 * 64;
    if (blocks_.empty() || used_ + room > blocks_.back().size) add(std::max(room, held_));
    std::byte* const at = blocks_.back().data.get() + used_;
    used_ += room;
    return {at, count};
  }

  /// A contiguous tensor, as attune sees it: a view that owns nothing.
  attune::Tensor tensor(attune::DType dtype, std::initializer_list<std::int64_t> shape) {
    attune::Tensor out(nullptr, dtype, shape, {}, device_);
    out.data = bytes(static_cast<std::size_t>(out.size()) * attune::size_of(dtype)).data();
    return out;
  }

  /// Takes everything back. Nothing may read it any more: work on a stream is done.
  void clear() {
    if (blocks_.size() > 1) {
      const std::size_t all = held_;
      blocks_.clear();
      held_ = 0;
      add(all);
    }
    used_ = 0;
  }

  const attune::Device& device() const { return device_; }

 private:
  struct Block {
    std::shared_ptr<std::byte> data;
    std::size_t size;
  };
  void add(std::size_t size) {
    if (device_ == attune::Device::cpu()) {
      constexpr std::align_val_t line{64};
      const auto free = [](std::byte* p) { ::operator delete(p, line); };
      blocks_.push_back({{static_cast<std::byte*>(::operator new(size, line)), free}, size});
    } else {
      // attune allocates on a GPU for us; the block lives as long as its array.
      const auto of = device_.array<std::uint8_t>({static_cast<std::int64_t>(size)});
      blocks_.push_back({{reinterpret_cast<std::byte*>(of.data()), [of](std::byte*) {}}, size});
    }
    held_ += size;
    used_ = 0;
  }

  attune::Device device_;
  std::vector<Block> blocks_;
  std::size_t used_ = 0;  ///< of the last block
  std::size_t held_ = 0;  ///< by all blocks
};

/// Rows of floats on the host: what flows between layers, a row for each token.
struct Rows {
  float* x = nullptr;
  std::int64_t count = 0, width = 0;

  Rows(Arena& arena, std::int64_t rows, std::int64_t columns)
      : x(static_cast<float*>(arena.tensor(attune::DType::f32, {rows, columns}).data)), count(rows), width(columns) {}
  float* operator[](std::int64_t row) const { return x + row * width; }
  attune::Tensor tensor() const { return {x, attune::DType::f32, {count, width}}; }
};

}  // namespace runtime
