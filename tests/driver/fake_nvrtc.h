// tests/driver/fake_nvrtc.h — a libnvrtc.so.13 that compiles nothing: what its compilations do, as tests set it
#pragma once

#include <functional>
#include <string>

namespace attune::tests::fake_nvrtc {

/// Called at each compilation from now on, with the source; returns a nvrtcResult, 0 for success. Empty: all succeed.
void compile_with(std::function<int(const std::string& source)> compilation);

}  // namespace attune::tests::fake_nvrtc
