// runtime/machine/cache/single.h — one value per key: the first thread that asks makes it while the others wait
#pragma once

#include <array>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <unistd.h>

namespace attune::runtime {

/// Values live as long as this object. If making one throws, all threads that wait for it get the exception; the next
/// call tries again. `Hash` may ignore parts of a key that seldom differ.
template <class Key, class T, class Hash = std::hash<Key>>
class Single {
 public:
  using Pointer = std::shared_ptr<const T>;

  Single() = default;
  Single(const Single&) = delete;
  Single& operator=(const Single&) = delete;
  ~Single() {
    for (std::atomic<const Made*>& chain : chains_)
      for (const Made *one = chain, *next = nullptr; one; one = next) {
        next = one->next;
        delete one;
      }
  }

  /// Null if not made yet.
  Pointer find(const Key& key) const {
    // Entries stay, and new ones go in front: a reader that has a chain's first entry sees all behind it, without a
    // lock.
    for (const Made* one = chain_of(key).load(std::memory_order_acquire); one; one = one->next)
      if (one->key == key) return one->value;
    return nullptr;
  }

  template <class Make>
  Pointer get(const Key& key, const Make& make) {
    Pointer found = find(key);
    return found ? found : get_slowly(key, make);
  }

 private:
  struct Made {
    Key key;
    Pointer value;
    const Made* next;
  };
  struct Making {
    std::shared_future<Pointer> future;
    pid_t by = 0;
  };

  template <class Make>
  Pointer get_slowly(const Key& key, const Make& make) {
    std::optional<std::promise<Pointer>> mine;
    std::shared_future<Pointer> made;
    {
      const std::lock_guard lock(mutex_);
      if (Pointer found = find(key)) return found;
      Making& making = making_[key];
      // In a forked child, no thread continues what the parent was making.
      if (making.by != getpid()) {
        mine.emplace();
        making = {mine->get_future().share(), getpid()};
      }
      made = making.future;
    }
    if (mine) fill(key, make, *mine);
    return made.get();
  }

  template <class Make>
  void fill(const Key& key, const Make& make, std::promise<Pointer>& promise) {
    try {
      Pointer value = make();
      {
        const std::lock_guard lock(mutex_);
        auto& chain = chain_of(key);
        chain.store(new Made{key, value, chain.load(std::memory_order_relaxed)}, std::memory_order_release);
        making_.erase(key);
      }
      promise.set_value(std::move(value));
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        making_.erase(key);
      }
      promise.set_exception(std::current_exception());
    }
  }

  // Most processes have some tens of kernels, long-lived ones thousands: chains stay short.
  static constexpr std::size_t chains = 512;
  using Chains = std::array<std::atomic<const Made*>, chains>;
  const std::atomic<const Made*>& chain_of(const Key& key) const { return chains_[Hash()(key) % chains]; }
  std::atomic<const Made*>& chain_of(const Key& key) { return chains_[Hash()(key) % chains]; }

  Chains chains_{};
  std::mutex mutex_;  ///< guards making_ and insertions into the chains
  std::map<Key, Making> making_;
};

}  // namespace attune::runtime
