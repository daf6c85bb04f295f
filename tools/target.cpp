// tools/target.cpp — --target emulated:ARCH: an emulated GPU replaces this machine's
#include "tools/target.h"

#include "runtime/engines/emulated/emulated.h"

namespace attune::tools {

void take_target(std::string& target) {
  if (!runtime::emulated::names_emulated(target)) return;
  runtime::emulated::emulate(runtime::emulated::gpu_of(target));
  target = "cuda";
}

}  // namespace attune::tools
