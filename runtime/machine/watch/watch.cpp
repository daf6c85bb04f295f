// runtime/machine/watch/watch.cpp — brings facts to listeners; without listeners a fact costs one atomic load
#include "runtime/machine/watch/watch.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "runtime/machine/mutex.h"
#include "runtime/machine/watch/log.h"

namespace attune {
namespace watch {

struct Listener {
  Listener(Callbacks c, bool now) : callbacks(std::move(c)), at_once(now) {}

  const Callbacks callbacks;
  const bool at_once;  ///< see listen_at_once
  runtime::Mutex mutex{};
  runtime::Condition idle{};
  int running = 0;
  std::uint32_t process = runtime::process_number();  ///< whose threads are `running`
  bool stopped = false;

  unsigned wants() const {
    using runtime::Fact;
    const auto bit = [](Fact fact, bool there) { return there ? static_cast<unsigned>(fact) : 0u; };
    return bit(Fact::lowered, callbacks.lowered != nullptr) | bit(Fact::chosen, callbacks.chosen != nullptr) |
           bit(Fact::built, callbacks.built != nullptr) | bit(Fact::called, callbacks.called != nullptr) |
           bit(Fact::notice, callbacks.notice != nullptr) | bit(Fact::compiling, callbacks.compiling != nullptr);
  }
  const auto& of(const Lowered&) const { return callbacks.lowered; }
  const auto& of(const Chosen&) const { return callbacks.chosen; }
  const auto& of(const Built&) const { return callbacks.built; }
  const auto& of(const Called&) const { return callbacks.called; }
  const auto& of(const Notice&) const { return callbacks.notice; }
  const auto& of(const Compiling&) const { return callbacks.compiling; }
};

}  // namespace watch

namespace runtime {

std::atomic<unsigned> Audience::facts{not_known};

namespace {

using watch::Listener;
using Listeners = std::vector<std::shared_ptr<Listener>>;
using AnyFact =
    std::variant<watch::Lowered, watch::Chosen, watch::Built, watch::Called, watch::Notice, watch::Compiling>;

/// Never destroyed: threads may report facts until the process ends.
struct All {
  Mutex mutex;
  std::shared_ptr<const Listeners> listeners = std::make_shared<const Listeners>();
  bool begun = false;
};
All& all() {
  static constinit Once<All> made;
  return made.get();
}

struct OfThread {
  std::vector<AnyFact> waiting;
  std::vector<const Listener*> within;  ///< listeners whose callbacks this thread is in
};
OfThread& of_thread() {
  thread_local OfThread made;
  return made;
}

std::shared_ptr<const Listeners> listeners() {
  const std::lock_guard lock(all().mutex);
  return all().listeners;
}

/// Call with the mutex held.
void replace_listeners(Listeners now) {
  unsigned wanted = 0;
  for (const auto& one : now) wanted |= one->wants();
  all().listeners = std::make_shared<const Listeners>(std::move(now));
  if (all().begun) Audience::facts.store(wanted, std::memory_order_relaxed);
}

void add(std::shared_ptr<Listener> listener) {
  const std::lock_guard lock(all().mutex);
  Listeners now = *all().listeners;
  now.push_back(std::move(listener));
  replace_listeners(std::move(now));
}

/// In a forked child, no callback on a thread of the parent ends. Call with the mutex held.
void forget_parents(Listener& listener) {
  if (listener.process == process_number()) return;
  listener.process = process_number();
  listener.running = static_cast<int>(std::ranges::count(of_thread().within, &listener));
}

/// Counts in `running` while this object lives, unless the listener was stopped.
class Entered {
 public:
  explicit Entered(Listener& listener) : listener_(listener) {
    const std::lock_guard lock(listener.mutex);
    forget_parents(listener);
    entered_ = !listener.stopped;
    if (!entered_) return;
    of_thread().within.push_back(&listener);
    ++listener.running;
  }
  ~Entered() {
    if (!entered_) return;
    const std::lock_guard lock(listener_.mutex);
    forget_parents(listener_);
    of_thread().within.pop_back();
    if (--listener_.running == 0) listener_.idle.notify_all();
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  Listener& listener_;
  bool entered_ = false;
};

void record_throw(const char* what) {
  try {
    record(watch::Notice{watch::Notice::Of::watch,
                         fmt::format("a callback threw an exception, which is ignored: {}", what)});
  } catch (...) {
  }
}

template <class F>
void give(Listener& listener, const F& fact) {
  const auto& callback = listener.of(fact);
  if (!callback || std::ranges::count(of_thread().within, &listener) > 0) return;
  const Entered entered(listener);
  if (!entered) return;
  try {
    callback(fact);
  } catch (const std::exception& e) {
    record_throw(e.what());
  } catch (...) {
    record_throw("no std::exception");
  }
}

template <class F>
void give_all(const F& fact, bool at_once) {
  const auto now = listeners();
  for (const auto& one : *now)
    if (one->at_once == at_once) give(*one, fact);
}

template <class F>
void record_all(F fact) {
  give_all(fact, true);
  if (Recording::holds())
    of_thread().waiting.emplace_back(std::move(fact));
  else
    give_all(fact, false);
}

}  // namespace

unsigned Audience::begin() {
  // Not under the mutex: reading options may throw, and the log is a listener like others.
  static constinit Once<bool> logged;
  logged.get([] {
    log_as_asked();
    show_as_asked();
    return true;
  });
  const std::lock_guard lock(all().mutex);
  all().begun = true;
  replace_listeners(Listeners(*all().listeners));
  return facts.load(std::memory_order_relaxed);
}

void listen_at_once(watch::Callbacks callbacks) { add(std::make_shared<Listener>(std::move(callbacks), true)); }

void Recording::give_waiting() {
  waiting_ = false;
  const std::vector<AnyFact> facts = std::exchange(of_thread().waiting, {});
  for (const AnyFact& fact : facts) std::visit([](const auto& one) { give_all(one, false); }, fact);
}

void record(watch::Lowered fact) { record_all(std::move(fact)); }
void record(watch::Chosen fact) { record_all(std::move(fact)); }
void record(watch::Built fact) { record_all(std::move(fact)); }
void record(watch::Called fact) { record_all(std::move(fact)); }
void record(watch::Notice fact) { record_all(std::move(fact)); }
void record(watch::Compiling fact) { record_all(std::move(fact)); }

}  // namespace runtime

namespace watch {

Watching on(Callbacks callbacks) {
  Watching watching;
  watching.listener_ = std::make_shared<Listener>(std::move(callbacks), false);
  runtime::add(watching.listener_);
  return watching;
}

void Watching::stop() noexcept {
  if (!listener_) return;
  const std::shared_ptr<Listener> listener = std::exchange(listener_, nullptr);
  {
    const std::lock_guard lock(runtime::all().mutex);
    runtime::Listeners now = *runtime::all().listeners;
    std::erase(now, listener);
    runtime::replace_listeners(std::move(now));
  }
  std::unique_lock lock(listener->mutex);
  runtime::forget_parents(*listener);
  listener->stopped = true;
  if (runtime::of_thread().within.empty()) listener->idle.wait(lock, [&] { return listener->running == 0; });
}

}  // namespace watch
}  // namespace attune
