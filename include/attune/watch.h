// include/attune/watch.h — what attune does, told to your program: kernels that were made, calls that ran, what was
// chosen
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace attune::watch {

/// An attention went through the compiler. Copies of it do not go again.
struct Lowered {
  struct Step {
    std::string name;
    double seconds = 0;
    std::size_t nodes = 0;  ///< of all expressions afterwards, each content counted once
  };
  std::string mod;  ///< digest of the expressions and of the types they read: names them everywhere
  std::vector<Step> steps;
  double seconds = 0;
};

/// One of several ways was taken.
struct Chosen {
  struct Rejected {
    std::string kernel, why;
  };
  std::string mod, target, kernel;
  std::vector<std::string> notes;  ///< whose choice it is, and kernels that were no candidates
  std::vector<Rejected> rejected;
};

/// A kernel is there that this process did not have.
struct Built {
  enum class From : std::uint8_t { compiler, disk, bundle };
  std::string mod;     ///< empty: the same for all expressions
  std::string kernel;  ///< and how it is cut, as `attune bench --kernel` takes it: NAME:m=128,n=96
  std::string target;  ///< sm_90a, avx512bf16
  From from = From::compiler;
  double seconds = 0;                          ///< until it was found or made
  std::size_t bytes = 0;                       ///< of code
  int registers = 0, spilled = 0, shared = 0;  ///< of a GPU's: registers of a thread; bytes
  std::string flaw;                            ///< what it is worse in than it should be; or empty
  std::string key;                             ///< what `attune cache`, or `attune bundle`, calls it
};

/// A call was computed, or on a device: put on its stream.
struct Called {
  std::string call;  ///< forward or backward
  std::string mod, target, kernel;
  std::string dtype;  ///< of q
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, d = 0, dv = 0;
  bool packed = false;
  std::size_t workspace = 0;   ///< bytes
  double seconds = 0;          ///< on the host, compiling included; a device may take longer
  const char* file = nullptr;  ///< where the call is written; null: not known
  int line = 0;
};

/// Something that is no failure and worth knowing: an entry of the cache that was discarded, a folder that cannot be
/// written, a callback that threw.
struct Noted {
  enum class Of : std::uint8_t { cache, dump, verify, watch };
  Of of = Of::cache;
  std::string text;
};

/// What is left out is not asked for.
///
/// A callback is called on the thread that the fact is of, at the end of the call of attune's that brought it about,
/// when attune holds no lock: it may call attune. Threads call it side by side. What it does is told to others, not to
/// itself. What it throws goes no further: the call that is watched is as good as unwatched, and the others get a
/// Noted.
struct Callbacks {
  std::function<void(const Lowered&)> lowered{};
  std::function<void(const Chosen&)> chosen{};
  std::function<void(const Built&)> built{};
  std::function<void(const Called&)> called{};
  std::function<void(const Noted&)> noted{};
};

struct Listener;

/// For as long as it lives, facts are told.
class [[nodiscard]] Watching {
 public:
  Watching() = default;
  ~Watching() { stop(); }
  Watching(Watching&&) noexcept = default;
  Watching& operator=(Watching&& other) noexcept {
    if (this != &other) stop();
    listener_ = std::move(other.listener_);
    return *this;
  }
  /// When it returns, no callback of this one runs, and none will. Called within any callback it does not wait for
  /// those that other threads are in.
  void stop() noexcept;

 private:
  friend Watching on(Callbacks callbacks);
  std::shared_ptr<Listener> listener_;
};

///   const auto watching = attune::watch::on({.built = [](const auto& b) { std::puts(b.kernel.c_str()); }});
Watching on(Callbacks callbacks);

}  // namespace attune::watch
