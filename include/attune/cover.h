// include/attune/cover.h — Cover: the tiles that a mask leaves to visit, listed once for many calls
#pragma once

#include <attune/cxx20.h>

#include <memory>
#include <utility>

namespace attune {

namespace detail {
struct DeviceCover;
}  // namespace detail

/// Made by Attention::cover, passed to calls as Resources::cover. Copies share the lists. By default it is empty.
class Cover {
 public:
  Cover() = default;
  explicit Cover(std::shared_ptr<const detail::DeviceCover> lists) : lists_(std::move(lists)) {}

  /// True if it holds lists.
  explicit operator bool() const { return lists_ != nullptr; }
  const detail::DeviceCover* lists() const { return lists_.get(); }

 private:
  std::shared_ptr<const detail::DeviceCover> lists_;
};

}  // namespace attune
