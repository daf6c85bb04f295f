// tools/target.h — --target emulated:ARCH: a GPU that is emulated takes the place of this machine's
#pragma once

#include <string>

namespace attune::tools {

/// Where the target is emulated, it becomes `cuda`, and the device is that one from now on. Throws an Error for a name
/// that there is not.
void take_target(std::string& target);

}  // namespace attune::tools
