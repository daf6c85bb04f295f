// tools/attune.cpp — the command line's main
#include <cstdio>
#include <cstdlib>

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tools/verbs.h"

namespace {

/// Runs before every static object. LLVM's options are such objects, and end the process with SIGABRT where memory runs
/// out; they and our own take 1 MiB.
[[gnu::constructor(101)]] void check_memory() {
  constexpr std::size_t room = std::size_t{2} << 20;
  void* const at = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    std::fputs("attune: there is no memory to start with [no-memory]\n", stderr);
    std::_Exit(2);
  }
  munmap(at, room);
#ifdef M_ARENA_MAX
  // glibc takes 64 MiB of address space for each thread's arena. A thread that cannot have them gets every small
  // allocation from mmap: compiling then takes a hundred times as long and as much memory.
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace

int main(int argc, char** argv) { return attune::tools::attune_main(argc, argv); }
