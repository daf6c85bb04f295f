// include/attune/cover.h — Cover: the tiles that a mask leaves to visit, listed once for many calls
#pragma once

#include <memory>
#include <utility>

namespace attune {

namespace detail {
struct Listed;
}  // namespace detail

/// Made by Attention::cover, handed to calls as Resources::cover. Copies share the lists. Left as it is: none.
class Cover {
 public:
  Cover() = default;
  explicit Cover(std::shared_ptr<const detail::Listed> listed) : listed_(std::move(listed)) {}

  /// Are there lists in it?
  explicit operator bool() const { return listed_ != nullptr; }
  const detail::Listed* listed() const { return listed_.get(); }

 private:
  std::shared_ptr<const detail::Listed> listed_;
};

}  // namespace attune
