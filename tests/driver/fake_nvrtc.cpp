// tests/driver/fake_nvrtc.cpp — a libnvrtc.so.13 that compiles nothing: a kernel's binary is its source, and spills
// nothing
#include "tests/driver/fake_nvrtc.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace {

std::mutex mutex;
std::function<int(const std::string&)> compilation;

using Result = int;  // 0: success

/// The parts of an ELF file that the fake driver reads.
struct Program {
  std::string cubin;
  std::deque<std::string> names;  ///< whose texts stay where they are
};

Program& program(void* handle) { return *static_cast<Program*>(handle); }
Result give(std::size_t* into, std::size_t value) {
  *into = value;
  return 0;
}
Result copy(char* into, const std::string& text) {
  std::memcpy(into, text.data(), text.size());
  return 0;
}

}  // namespace

namespace attune::tests::fake_nvrtc {

void compile_with(std::function<int(const std::string&)> other) {
  const std::lock_guard lock(mutex);
  compilation = std::move(other);
}

}  // namespace attune::tests::fake_nvrtc

extern "C" {

/// 13.0, or as the environment says: 11.8
Result nvrtcVersion(int* major, int* minor) {
  const char* const version = std::getenv("ATTUNE_TEST_NVRTC_VERSION");
  *major = 13;
  *minor = 0;
  return version && std::sscanf(version, "%d.%d", major, minor) != 2;
}
Result nvrtcCreateProgram(void** into, const char* text, const char*, int, const char* const*, const char* const*) {
  *into = new Program{std::string("\177ELF") + text, {}};
  return 0;
}
Result nvrtcDestroyProgram(void** handle) {
  delete &program(*handle);
  *handle = nullptr;
  return 0;
}
/// Refuses an option that this version does not have, and to keep machine code in a cache of its own if it would.
Result nvrtcCompileProgram(void* handle, int options, const char* const* values) {
  int major = 0, minor = 0;
  nvrtcVersion(&major, &minor);
  bool uncached = false;
  for (int i = 0; i < options; ++i) uncached = uncached || std::string_view(values[i]) == "--no-cache";
  constexpr Result invalid_option = 5;
  if (uncached != (major > 12 || minor >= 9)) return invalid_option;
  std::unique_lock lock(mutex);
  const auto asked = compilation;
  lock.unlock();
  return asked ? asked(program(handle).cubin) : 0;
}
Result nvrtcAddNameExpression(void*, const char*) { return 0; }
/// Not mangled: tests look for a kernel's name in it.
Result nvrtcGetLoweredName(void* handle, const char* name, const char** lowered) {
  *lowered = program(handle).names.emplace_back(name).c_str();
  return 0;
}
Result nvrtcGetProgramLogSize(void*, std::size_t* size) { return give(size, 1); }
Result nvrtcGetProgramLog(void*, char* log) { return copy(log, std::string(1, '\0')); }
Result nvrtcGetCUBINSize(void* handle, std::size_t* size) { return give(size, program(handle).cubin.size()); }
Result nvrtcGetCUBIN(void* handle, char* into) { return copy(into, program(handle).cubin); }
Result nvrtcGetPTXSize(void*, std::size_t* size) { return give(size, 1); }
Result nvrtcGetPTX(void*, char* into) { return copy(into, std::string(1, '\0')); }
const char* nvrtcGetErrorString(Result) { return "as the test wants it"; }
}
