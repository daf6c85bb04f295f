// codegen/cuda/emulated/ptx/thread.cuh — which lane a thread is, and its end
#pragma once

namespace attune {

inline int lane_asked() { return attune_machine->now->lane; }
[[noreturn]] inline void leave() {
  attune_machine->leave();
  __builtin_unreachable();
}

}  // namespace attune
