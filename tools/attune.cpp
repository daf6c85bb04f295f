// tools/attune.cpp — the command line's main
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include "runtime/machine/limits.h"
#include "tools/verbs.h"

namespace {

/// Runs before the constructors of static objects. LLVM's options are static objects and end the process with SIGABRT
/// if memory runs out; together with attune's they take 1 MiB.
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

/// Opens stdin, stdout and stderr if the caller closed them: otherwise the next opened file would get the descriptor,
/// and output would go into it. Reads and writes of the opened ones still fail, except that stderr discards.
void keep_standard_files() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(file, F_GETFD) < 0) open("/dev/null", file == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_files();
  // Exceeding the limit on file sizes is an error to report, not a signal that ends the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return attune::tools::attune_main(argc, argv);
}
