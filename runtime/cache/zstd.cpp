// runtime/cache/zstd.cpp — bytes made smaller, where attune is built with zstd
#include "runtime/cache/zstd.h"

#include <zstd.h>

namespace attune::runtime {

namespace {

// Of a bundle of 111 entries of GPUs and 52 of CPUs, 13.4 MB, one core of a Zen 4: level 3 leaves 27.4% in 40 ms, 5
// leaves 26.6% in 79 ms, 7 leaves 25.2% in 131 ms, 9 leaves 24.8% in 193 ms, 19 leaves 22.5% in 3 s; to decompress it
// takes 10 to 15 ms. Past 7 little is gained for the time, and any is little beside the 128 s that compiling took.
constexpr int level = 7;

}  // namespace

bool has_zstd() { return true; }

std::optional<std::string> compressed(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), level);
  if (ZSTD_isError(size) || size >= text.size()) return std::nullopt;
  out.resize(size);
  return out;
}

std::optional<std::string> decompressed(std::string_view text, std::size_t size) {
  // What it says of itself comes first: nothing is allocated for a frame that does not fit.
  if (ZSTD_getFrameContentSize(text.data(), text.size()) != size) return std::nullopt;
  std::string out(size, '\0');
  if (ZSTD_decompress(out.data(), out.size(), text.data(), text.size()) != size) return std::nullopt;
  return out;
}

}  // namespace attune::runtime
