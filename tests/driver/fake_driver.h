// tests/driver/fake_driver.h — a libcuda.so.1 that launches nothing: records calls, and refuses the ones a test names
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attune::tests::fake_driver {

struct Launch {
  std::string kernel;  ///< its mangled name
  unsigned blocks = 0, threads = 0, shared_bytes = 0;
  void* stream = nullptr;
};

/// Compute capability times ten, by device.
inline constexpr int archs[] = {90, 80, 89, 100, 120};

/// How often a function was called since `forget`.
int calls(std::string_view function);
/// All calls by which memory that is no stream's is taken, or by which the host waits.
int calls_behind_the_back();
std::vector<Launch> launches();
void forget();

/// From its next call on, the function gives this: a number of CUresult; 0 as before.
void refuse(std::string_view function, int result);
std::vector<std::string_view> functions();

/// Pieces of memory that were taken and not given back.
int live_memory();
/// Contexts on the calling thread's stack.
int contexts();

}  // namespace attune::tests::fake_driver
