// runtime/machine/cache/no_zstd.cpp — the runtime's compression functions in a build without zstd
#include "runtime/machine/cache/zstd.h"

namespace attune::runtime {

bool has_zstd() { return false; }
std::optional<std::string> compressed(std::string_view) { return std::nullopt; }
std::optional<std::string> decompressed(std::string_view, std::size_t) { return std::nullopt; }

}  // namespace attune::runtime
