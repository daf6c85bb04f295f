// tools/target.h — --target emulated:ARCH: an emulated GPU replaces this machine's
#pragma once

#include <string>

namespace attune::tools {

/// If the target is emulated, it becomes `cuda`, and the process's device is the emulated GPU from then on. Throws an
/// Error for an unknown name.
void take_target(std::string& target);

}  // namespace attune::tools
