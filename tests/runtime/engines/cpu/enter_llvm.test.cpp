// tests/runtime/engines/cpu/enter_llvm.test.cpp — memory that runs out before LLVM is entered, and inside it, is an
// Error
#include "runtime/engines/cpu/orc.h"

#include <array>
#include <fstream>
#include <functional>
#include <new>
#include <string>

#include <attune/error.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/catch.h"
#include "tests/child.h"
#include "tests/golden.h"

namespace attune::runtime::cpu {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

/// For this process, from now on.
void allow_more(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * static_cast<std::size_t>(getpagesize()) + bytes, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(4);
}

/// The message of the Error from `work` in a child process that may take this much more memory.
std::string told_with(std::size_t bytes, const std::function<void()>& work) {
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  const int status = tests::in_child([&] {
    allow_more(bytes);
    try {
      work();
    } catch (const Error& e) {
      const std::string_view text = e.what();
      return write(pipe_ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 3;
    }
    return 2;
  });
  CHECK(status == 0);
  close(pipe_ends[1]);
  std::array<char, 1000> text{};
  const ssize_t length = read(pipe_ends[0], text.data(), text.size());
  close(pipe_ends[0]);
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

void take_all() {
  for (;;) *static_cast<volatile char*>(::operator new(MiB)) = 1;
}

bool skips() {
  if (tests::sanitized) std::puts("[skip] sanitizers map more than any limit");
  return tests::sanitized;
}

}  // namespace

TEST_CASE("without room for LLVM it is not entered", "[llvm]") {
  if (skips()) return;
  tests::golden_error("no-memory.compile", told_with(8 * MiB, [] { enter_llvm(LlvmWork::compile, [] { _exit(5); }); }));
}

TEST_CASE("memory that runs out inside LLVM is an Error, and LLVM is not entered again", "[llvm]") {
  if (skips()) return;
  tests::golden_error("no-memory.inside", told_with(64 * MiB, [] { enter_llvm(LlvmWork::compile, take_all); }));
  tests::golden_error("no-memory.after", told_with(64 * MiB, [] {
                        try {
                          enter_llvm(LlvmWork::compile, take_all);
                        } catch (const Error&) {
                        }
                        enter_llvm(LlvmWork::unlink, [] { _exit(5); });
                      }));
}

TEST_CASE("exceptions of our own code leave LLVM as ever, and so does the user's new_handler", "[llvm]") {
  const std::new_handler users = [] { throw std::bad_alloc(); };
  const std::new_handler before = std::set_new_handler(users);
  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS(enter_llvm(LlvmWork::compile, [] { throw Bug("a test's"); }), Bug);
  int done = 0;
  enter_llvm(LlvmWork::compile, [&] {
    CHECK(std::get_new_handler() != users);
    enter_llvm(LlvmWork::link, [&] { ++done; });
  });
  CHECK(done == 1);
  CHECK(std::get_new_handler() == users);
  std::set_new_handler(before);
}

}  // namespace attune::runtime::cpu
