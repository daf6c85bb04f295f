// runtime/cache/zstd.h — bytes made smaller, where attune is built with zstd
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace attune::runtime {

/// Whether it is. Without it all below give nothing.
bool has_zstd();

/// The same for the same text and the same zstd. Nothing where it would be no smaller.
std::optional<std::string> compressed(std::string_view text);

/// Nothing unless it comes to `size` bytes, all of which are allocated: the caller bounds it.
std::optional<std::string> decompressed(std::string_view text, std::size_t size);

}  // namespace attune::runtime
