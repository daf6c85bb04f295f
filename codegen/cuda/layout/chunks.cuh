// codegen/cuda/layout/chunks.cuh — rows of tiles for Hopper lie in shared memory in chunks of 128 bytes
//
// The headers of this folder are plain C++: device files place things by them, and the host asks for as many bytes.
#pragma once

namespace attune {

/// TMA swizzles chunks of so many bytes a row.
constexpr int chunk_bytes = 128;

/// The swizzle needs chunks to start at multiples of it. A launch asks for as much more where the kernel aligns by
/// itself what it got.
constexpr int chunk_alignment = 1024;

}  // namespace attune
