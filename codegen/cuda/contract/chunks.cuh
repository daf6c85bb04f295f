// codegen/cuda/contract/chunks.cuh — rows of tiles for Hopper lie in shared memory in chunks of 128 bytes
//
// The headers of this folder are plain C++: device files place data by them, and the host requests that many bytes.
#pragma once

namespace attune {

/// Bytes of a row of a chunk, which TMA swizzles.
constexpr int chunk_bytes = 128;

/// The alignment of a chunk, in bytes. If a kernel aligns its memory itself, a launch requests this much more.
constexpr int chunk_alignment = 1024;

}  // namespace attune
