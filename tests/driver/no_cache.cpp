// tests/driver/no_cache.cpp — what the fake NVRTC makes comes into no user's cache, however test_driver is started
#include <cstdlib>

namespace {

[[maybe_unused]] const int kept_nowhere = setenv("ATTUNE_CACHE_SIZE", "0", 1);

}  // namespace
