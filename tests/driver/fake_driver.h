// tests/driver/fake_driver.h — a libcuda.so.1 that launches nothing: counts of its calls, and results that tests set
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace attune::tests::fake_driver {

struct Launch {
  std::string kernel;  ///< its mangled name
  unsigned blocks = 0, threads = 0, shared_bytes = 0;
  void* stream = nullptr;
  unsigned cluster = 1;
  bool early = false;  ///< may start before the one before it has ended
};

/// A step enqueued on a stream.
struct Step {
  int stream = 0;    ///< by when it was created; 0: the default one
  std::string what;  ///< "launches NAME", "copies 2 x 64 bytes", "clears 64 bytes", "waits for #3", "records #3"
};

/// For each device, ten times its compute capability.
inline constexpr int archs[] = {90, 80, 89, 100, 120};

/// How often a function was called since `forget`.
int calls(std::string_view function);
/// Counts calls that allocate outside stream order, and calls that make the host wait.
int calls_behind_the_back();
std::vector<Launch> launches();
/// All steps enqueued on streams since `forget`, in the order of calls. Events are numbered in the order in
/// which they are recorded.
std::vector<Step> steps();
/// Adds a step of a test's own.
void add_step(void* stream, std::string what);
/// Called when a step is enqueued on a stream, with the pointers to a kernel's arguments. A copy to a device counts as
/// a launch of `copy`, setting words as a launch of `set`: `blocks` are bytes or words, the argument is the address.
void watch(std::function<void(const Launch&, void* const* arguments)> step);
void forget();

/// From its next call on, the function returns this number of a CUresult; 0: it works again.
void refuse(std::string_view function, int result);
std::vector<std::string_view> functions();
/// After this many more events, streams are stuck: they reach no event that is recorded later. -1: they reach all.
void stick(int events);

/// Pieces of memory that were taken and not freed.
int live_memory();
/// Contexts on the calling thread's stack.
int contexts();

}  // namespace attune::tests::fake_driver
