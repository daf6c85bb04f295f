// runtime/single.h — a value made once per key, by whoever asks first, while the others wait
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace attune::runtime {

/// Values live as long as this does. A making that throws is thrown to all who waited for it; the next asks anew.
template <class Key, class T>
class Single {
 public:
  using Pointer = std::shared_ptr<const T>;

  /// Null unless it has been made.
  Pointer find(const Key& key) {
    std::shared_future<Pointer> made;
    {
      const std::lock_guard lock(mutex_);
      const auto found = made_.find(key);
      if (found == made_.end()) return nullptr;
      made = found->second;
    }
    return made.wait_for(std::chrono::seconds(0)) == std::future_status::ready ? made.get() : nullptr;
  }

  Pointer get(const Key& key, const std::function<Pointer()>& make) {
    std::optional<std::promise<Pointer>> mine;
    const std::shared_future<Pointer> made = [&] {
      const std::lock_guard lock(mutex_);
      const auto found = made_.find(key);
      if (found != made_.end()) return found->second;
      mine.emplace();
      return made_.emplace(key, mine->get_future().share()).first->second;
    }();
    if (mine) fill(key, make, *mine);
    return made.get();
  }

 private:
  void fill(const Key& key, const std::function<Pointer()>& make, std::promise<Pointer>& promise) {
    try {
      promise.set_value(make());
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        made_.erase(key);
      }
      promise.set_exception(std::current_exception());
    }
  }

  std::mutex mutex_;
  std::map<Key, std::shared_future<Pointer>> made_;
};

}  // namespace attune::runtime
