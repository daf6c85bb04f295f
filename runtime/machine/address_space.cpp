// runtime/machine/address_space.cpp — how much memory the process may still map
#include "runtime/machine/address_space.h"

#include <sys/mman.h>
#include <sys/resource.h>

namespace attune::runtime {

bool can_map(std::size_t bytes) {
  if (bytes == 0) return true;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return false;
  munmap(at, bytes);
  return true;
}

bool is_address_space_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace attune::runtime
