// runtime/machine/cache/zstd.h — compression, in a build with zstd
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace attune::runtime {

/// True if this build has zstd. Without zstd, the functions below return nothing.
bool has_zstd();

/// Deterministic for one version of zstd. Nothing if the result would not be smaller.
std::optional<std::string> compressed(std::string_view text);

/// Nothing unless the result has exactly `size` bytes. All of them are allocated, so the caller must bound `size`.
std::optional<std::string> decompressed(std::string_view text, std::size_t size);

}  // namespace attune::runtime
