// tests/driver/no_cache.cpp — keeps kernels of the fake NVRTC out of the user's cache, however test_driver is started
#include <cstdlib>

namespace {

[[maybe_unused]] const int kept_nowhere = setenv("ATTUNE_CACHE_SIZE", "0", 1);

}  // namespace
