// tests/codegen/probe.h — a Mod as the source of the kernel in probe.cuh
#pragma once

#include "codegen/choose/kernel.h"
#include "codegen/source/source.h"
#include "tests/codegen/device_file.h"

namespace attune::tests {

inline constexpr int probe_tile = 16;

inline codegen::Source probe_source(const codegen::GpuParts& parts, int arch, bool exact) {
  static const std::string text = device_file("probe.cuh");
  static const codegen::Header header{"codegen/cuda/probe/probe.cuh", text.c_str()};
  static const codegen::KernelDescriptor probe{.name = "probe", .headers = {&header, 1}};
  return codegen::kernel_source(parts,
                                {.kernel = &probe, .spec = {.arch = arch, .exact = exact}, .tile = {.m = probe_tile}});
}

}  // namespace attune::tests
