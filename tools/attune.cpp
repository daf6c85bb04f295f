// tools/attune.cpp — the command line's main
#include <cstdio>
#include <cstdlib>

#include <malloc.h>

#include "runtime/address_space.h"
#include "tools/verbs.h"

namespace {

/// Runs before every static object. LLVM's options are such objects, and end the process with SIGABRT where memory runs
/// out; they and our own take 1 MiB.
[[gnu::constructor(101)]] void check_memory() {
  if (!attune::runtime::can_map(std::size_t{2} << 20)) {
    std::fputs("attune: there is no memory to start with [no-memory]\n", stderr);
    std::_Exit(2);
  }
#ifdef M_ARENA_MAX
  // glibc takes 64 MiB of address space for each thread's arena. A thread that cannot have them gets every small
  // allocation from mmap: compiling then takes a hundred times as long and as much memory.
  if (attune::runtime::is_address_space_limited()) mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace

int main(int argc, char** argv) { return attune::tools::attune_main(argc, argv); }
