// runtime/machine/watch/waits.cpp — who waits for compilers, and what they compile: reported while a call waits long
#include "runtime/machine/watch/waits.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/machine/threads.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {

using Time = std::chrono::steady_clock::time_point;

struct CompilerWorks::Kernel {
  std::string name;
  Time begin;
};

namespace {

thread_local constinit int waits_of_thread = 0;

Time now() { return std::chrono::steady_clock::now(); }
double seconds_since(Time begin) { return std::chrono::duration<double>(now() - begin).count(); }

}  // namespace

/// The waits of one process. A thread reports them while a call waits and a compiler works.
class Waiting {
 public:
  using Begins = std::list<Time>;
  using Kernels = std::list<CompilerWorks::Kernel>;

  Begins::iterator wait() {
    const bool listened = wants(Fact::compiling);
    const std::lock_guard lock(mutex_);
    begins_.push_back(now());
    if (listened) start();
    return std::prev(begins_.end());
  }

  void go_on(Begins::iterator begin) {
    std::thread last;
    {
      const std::lock_guard lock(mutex_);
      begins_.erase(begin);
      if (begins_.empty()) {
        last = std::move(reports_);
        ++thread_;
      }
      changed_.notify_all();
    }
    if (last.joinable()) last.join();
  }

  Kernels::iterator begin(const std::string& name) {
    const bool listened = wants(Fact::compiling);
    const std::lock_guard lock(mutex_);
    kernels_.push_back({name, now()});
    if (listened) start();
    return std::prev(kernels_.end());
  }

  void end(Kernels::iterator kernel) {
    const std::lock_guard lock(mutex_);
    kernels_.erase(kernel);
    ++done_;
  }

  bool is_ours() const { return process_ == getpid(); }
  /// In a forked child, the parent's: memory without a thread, kept so that it does not leak.
  Waiting* parents = nullptr;

 private:
  void start() {
    if (begins_.empty() || kernels_.empty() || reports_.joinable()) return;
    done_ = 0;
    try {
      const SignalsBlocked blocked;
      reports_ = std::thread([this, self = thread_] { report(self); });
    } catch (const std::system_error&) {  // then nothing is reported
    } catch (const std::bad_alloc&) {
    }
  }

  /// Reports until `self` is no longer the number of the reporting thread.
  void report(std::uint64_t self) {
    works_for(WorksFor::later);
    std::unique_lock lock(mutex_);
    bool is_shown = false;
    Time shown;  // when the wait that is shown began
    const auto tell = [&](bool over) {
      watch::Compiling fact{.kernels = {}, .done = done_, .seconds = seconds_since(shown), .over = over, .text = {}};
      for (const CompilerWorks::Kernel& one : kernels_)
        if (!over) fact.kernels.push_back({one.name, seconds_since(one.begin)});
      is_shown = !over;
      lock.unlock();
      fact.text = text_of(fact);
      record(std::move(fact));
      lock.lock();
    };
    while (thread_ == self) {
      const bool is_long = !begins_.empty() && now() - begins_.front() >= wait_reported;
      if (is_long) shown = begins_.front();
      if (is_long || is_shown) tell(!is_long);
      if (thread_ != self) break;
      if (begins_.empty() || is_long)
        changed_.wait_for(lock, wait_pause);
      else
        changed_.wait_until(lock, begins_.front() + wait_reported);
    }
    if (is_shown) tell(true);
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  Begins begins_;  ///< of the calls that wait, in their order
  Kernels kernels_;
  std::size_t done_ = 0;
  std::uint64_t thread_ = 0;  ///< the number of the thread that reports
  std::thread reports_;
};

namespace {

/// Never destroyed: threads may compile until the process ends.
Waiting& waiting() {
  static std::atomic<Waiting*> only{nullptr};
  Waiting* one = only;
  while (!one || !one->is_ours()) {
    auto* const made = new Waiting;
    made->parents = one;
    if (only.compare_exchange_strong(one, made))
      one = made;
    else
      delete made;
  }
  return *one;
}

}  // namespace

Waits::Waits() {
  if (works_for() == WorksFor::call && waits_of_thread == 0) {
    Waiting& all = waiting();
    begin_ = all.wait();
    of_ = &all;
  }
  ++waits_of_thread;
}
Waits::~Waits() {
  --waits_of_thread;
  if (of_ && of_->is_ours()) of_->go_on(begin_);
}

CompilerWorks::CompilerWorks(const std::string& kernel) {
  if (works_for() == WorksFor::later) return;
  Waiting& all = waiting();
  at_ = all.begin(kernel);
  of_ = &all;
}
CompilerWorks::~CompilerWorks() {
  if (of_ && of_->is_ours()) of_->end(at_);
}

std::string text_of(const watch::Compiling& fact) {
  constexpr std::size_t most = 3;
  const char* const s = fact.done == 1 ? "" : "s";
  if (fact.over && fact.done == 0) return fmt::format("attune waited {:.1f} s for kernels", fact.seconds);
  if (fact.over) return fmt::format("attune compiled {} kernel{} in {:.1f} s", fact.done, s, fact.seconds);
  std::string out = fact.kernels.empty() ? "attune waits for kernels" : "attune compiles ";
  for (std::size_t i = 0; i < std::min(most, fact.kernels.size()); ++i) out += (i ? ", " : "") + fact.kernels[i].kernel;
  if (fact.kernels.size() > most) out += fmt::format(" and {} more", fact.kernels.size() - most);
  if (fact.done > 0) out += fmt::format(" after {} other{}", fact.done, s);
  return out + fmt::format(": {:.1f} s", fact.seconds);
}

}  // namespace attune::runtime
