// runtime/machine/cache/single.h — one value per key: the first thread that asks makes it while the others wait; the
// values that were used least recently go where there is a limit
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <unistd.h>

#include "runtime/machine/mutex.h"

namespace attune::runtime {

/// A value of a Single. Its uses are counted: while there is one, the value stays where it is.
template <class T>
struct Counted {
  static constexpr std::uint32_t gone = std::uint32_t{1} << 31;
  std::atomic<std::uint32_t> uses{gone};  ///< with the bit `gone` where there is no value
  std::shared_ptr<const T> value;         ///< changed only while `gone` is set
};

/// A use of a value. As cheap as a shared_ptr: one atomic addition at its beginning and one at its end.
template <class T>
class Held {
 public:
  Held() = default;
  /// Takes over a use that was counted already.
  explicit Held(Counted<T>& of) : of_(&of), value_(of.value.get()) {}
  Held(const Held& other) : of_(other.of_), value_(other.value_) {
    if (of_) of_->uses.fetch_add(1, std::memory_order_relaxed);
  }
  Held(Held&& other) noexcept : of_(std::exchange(other.of_, nullptr)), value_(std::exchange(other.value_, nullptr)) {}
  Held& operator=(Held other) noexcept {
    std::swap(of_, other.of_);
    std::swap(value_, other.value_);
    return *this;
  }
  ~Held() {
    if (of_) of_->uses.fetch_sub(1, std::memory_order_release);
  }

  const T* get() const { return value_; }
  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_; }
  explicit operator bool() const { return value_ != nullptr; }
  bool operator==(const Held& other) const { return value_ == other.value_; }
  bool operator==(std::nullptr_t) const { return value_ == nullptr; }
  /// The value for as long as the result lives, whether or not the Single still has it.
  std::shared_ptr<const T> shared() const { return of_ ? of_->value : nullptr; }

 private:
  Counted<T>* of_ = nullptr;
  const T* value_ = nullptr;
};

/// The limit on unused values that a Single keeps.
template <class T>
struct Limit {
  std::size_t count = std::numeric_limits<std::size_t>::max(), bytes = std::numeric_limits<std::size_t>::max();
  std::size_t (*bytes_of)(const T&) = [](const T&) { return std::size_t{0}; };
  /// False: the value stays as long as the Single, and does not count toward the limit.
  bool (*may_go)(const T&) = [](const T&) { return true; };
};

/// If making a value throws, all threads that wait for it get the exception; the next call tries again. `Hash` may
/// ignore parts of a key that seldom differ.
template <class Key, class T, class Hash = std::hash<Key>>
class Single {
 public:
  using Pointer = std::shared_ptr<const T>;

  Single() = default;
  explicit Single(const Limit<T>& limit) : limit_(limit) {}
  Single(const Single&) = delete;
  Single& operator=(const Single&) = delete;
  /// Values that are still in use, by threads that outlive static destruction, stay.
  ~Single() {
    for (Node* one : nodes_)
      if ((one->uses.load(std::memory_order_acquire) & ~Counted<T>::gone) == 0) delete one;
  }

  /// Null if not made yet.
  Held<T> find(const Key& key) const {
    const std::size_t hash = Hash()(key);
    if (Held<T> found = find_unlocked(hash, key)) return found;
    if (!recycles_.load(std::memory_order_relaxed)) return {};
    // A node that was recycled meanwhile may have led into another chain.
    const std::lock_guard lock(mutex_);
    return find_unlocked(hash, key);
  }

  template <class Make>
  Held<T> get(const Key& key, const Make& make) {
    Held<T> found = find_unlocked(Hash()(key), key);
    return found ? found : get_slowly(key, make);
  }

  /// Replaces the value of a key by `value`, if `is_old` is true of it. The old value stays for those who use it; a
  /// later change removes it once it has no use. False: the key has no such value, and `value` was not taken.
  template <class IsOld>
  bool replace(const Key& key, const IsOld& is_old, const Pointer& value) {
    std::vector<Pointer> gone;  // destroyed without the lock
    Held<T> held;
    const std::lock_guard lock(mutex_);
    Node* const old = node_of(key);
    if (!old || !is_old(*old->value)) return false;
    // Whoever looks for the key finds the newer node first.
    held = insert(key, value);
    old->replaced = true;
    gone = recycle();
    return true;
  }

 private:
  /// Nodes are never freed, only recycled, so that a reader without a lock may look at any. Key and value of a node are
  /// written while it is `gone`, and read only in a use.
  struct Node : Counted<T> {
    std::atomic<std::size_t> hash{0};
    std::atomic<std::uint64_t> used{0};  ///< the clock at its latest use
    std::atomic<Node*> next{nullptr};
    std::optional<Key> key;
    std::size_t bytes = 0;
    bool replaced = false;  ///< a newer node has its key
  };
  struct Making {
    std::shared_future<Held<T>> future;
    pid_t by = 0;
  };

  Held<T> find_unlocked(std::size_t hash, const Key& key) const {
    Node* one = chains_[hash % chains].load(std::memory_order_acquire);
    for (; one; one = one->next.load(std::memory_order_acquire)) {
      if (one->hash.load(std::memory_order_relaxed) != hash) continue;
      const bool is_gone = one->uses.fetch_add(1, std::memory_order_acquire) & Counted<T>::gone;
      if (!is_gone && *one->key == key) {
        one->used.store(clock_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return Held<T>(*one);
      }
      one->uses.fetch_sub(1, std::memory_order_release);
    }
    return {};
  }

  template <class Make>
  Held<T> get_slowly(const Key& key, const Make& make) {
    std::optional<std::promise<Held<T>>> mine;
    std::shared_future<Held<T>> made;
    {
      const std::lock_guard lock(mutex_);
      if (Held<T> found = find_unlocked(Hash()(key), key)) return found;
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
  void fill(const Key& key, const Make& make, std::promise<Held<T>>& promise) {
    try {
      Pointer value = make();
      std::vector<Pointer> gone;  // destroyed without the lock
      Held<T> held;
      {
        const std::lock_guard lock(mutex_);
        held = insert(key, std::move(value));
        gone = recycle();
        making_.erase(key);
      }
      promise.set_value(std::move(held));
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        making_.erase(key);
      }
      promise.set_exception(std::current_exception());
    }
  }

  // ---- with the mutex held

  /// Begins a use of it.
  Held<T> insert(const Key& key, Pointer value) {
    if (free_.empty()) {
      free_.reserve(nodes_.size() + 1);
      nodes_.push_back(new Node);
      free_.push_back(nodes_.back());
    }
    Node& node = *free_.back();
    const std::size_t hash = Hash()(key);
    auto& chain = chains_[hash % chains];
    node.key.emplace(key);
    node.bytes = limit_.bytes_of(*value);
    node.value = std::move(value);
    node.hash.store(hash, std::memory_order_relaxed);
    node.used.store(clock_.fetch_add(2, std::memory_order_relaxed) + 2, std::memory_order_relaxed);
    node.next.store(chain.load(std::memory_order_relaxed), std::memory_order_relaxed);
    // Clears `gone` and counts the first use at once: others may count a use at any time, and then see `gone`.
    node.uses.fetch_sub(Counted<T>::gone - 1, std::memory_order_acq_rel);
    chain.store(&node, std::memory_order_release);
    free_.pop_back();
    return Held<T>(node);
  }

  Node* node_of(const Key& key) const {
    const std::size_t hash = Hash()(key);
    for (Node* one = chains_[hash % chains].load(std::memory_order_relaxed); one;
         one = one->next.load(std::memory_order_relaxed))
      if (one->hash.load(std::memory_order_relaxed) == hash && *one->key == key) return one;
    return nullptr;
  }

  /// Takes out what was replaced, and what was used least recently down to the limit, unless it is used now.
  std::vector<Pointer> recycle() {
    std::vector<Pointer> out;
    const bool limited = limit_.count < nodes_.size() || limit_.bytes < std::numeric_limits<std::size_t>::max();
    if (!limited && std::ranges::none_of(nodes_, &Node::replaced)) return out;
    out.reserve(nodes_.size());
    free_.reserve(nodes_.size());
    for (Node* one : nodes_)
      if (one->replaced) take_out(*one, out);
    if (!limited) return out;
    std::vector<std::pair<std::uint64_t, Node*>> oldest;
    std::size_t bytes = 0;
    for (Node* one : nodes_)
      if (!one->replaced && !(one->uses.load(std::memory_order_relaxed) & Counted<T>::gone) &&
          limit_.may_go(*one->value)) {
        oldest.emplace_back(one->used.load(std::memory_order_relaxed), one);
        bytes += one->bytes;
      }
    std::size_t count = oldest.size();
    if (count <= limit_.count && bytes <= limit_.bytes) return out;
    std::ranges::sort(oldest);
    for (const auto& [used, one] : oldest) {
      if (count <= limit_.count && bytes <= limit_.bytes) break;
      const std::size_t its = one->bytes;
      if (!take_out(*one, out)) continue;
      --count;
      bytes -= its;
    }
    return out;
  }

  /// False: it is used. `out` and `free_` have room.
  bool take_out(Node& node, std::vector<Pointer>& out) {
    recycles_.store(true, std::memory_order_relaxed);
    std::uint32_t none = 0;
    if (!node.uses.compare_exchange_strong(none, Counted<T>::gone, std::memory_order_acq_rel)) return false;
    unlink(node);
    out.push_back(std::exchange(node.value, nullptr));
    node.key.reset();
    node.replaced = false;
    free_.push_back(&node);
    return true;
  }

  void unlink(Node& node) {
    std::atomic<Node*>* link = &chains_[node.hash.load(std::memory_order_relaxed) % chains];
    while (link->load(std::memory_order_relaxed) != &node) link = &link->load(std::memory_order_relaxed)->next;
    link->store(node.next.load(std::memory_order_relaxed), std::memory_order_release);
  }

  // Most processes have some tens of kernels, long-lived ones thousands: chains stay short.
  static constexpr std::size_t chains = 512;
  std::array<std::atomic<Node*>, chains> chains_{};
  Limit<T> limit_;
  std::atomic<std::uint64_t> clock_ = 0;  ///< rises by two for each value that is put in; uses in between get odd times
  std::atomic<bool> recycles_ = false;    ///< a node was recycled once
  mutable Mutex mutex_;                   ///< guards what follows, and changes of the chains
  std::map<Key, Making> making_;
  std::vector<Node*> nodes_, free_;  ///< all of them; those that are gone
};

}  // namespace attune::runtime
