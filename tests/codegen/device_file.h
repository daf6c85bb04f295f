// tests/codegen/device_file.h — the text of a device file in the tests' folder
#pragma once

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace attune::tests {

inline std::string device_file(const std::string& name) {
  std::ifstream file(ATTUNE_TEST_DEVICE_FILES "/" + name);
  if (!file) throw std::runtime_error("there is no " + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace attune::tests
