// tests/fuzz/cubin.fuzz.cpp — any bytes are read as a cubin, and what is read of them is theirs
#include <cstdint>
#include <string>

#include "runtime/platform/nvidia/nvrtc.h"
#include "tests/cubin_text.h"
#include "tests/fuzz/broken.h"

using attune::tests::broken;

namespace {

void check(const std::string& text) {
  const attune::runtime::cuda::Cubin cubin(text);
  for (const char* name : {"kernel", "other", ""}) {
    if (const auto needs = cubin.needs(name))
      if (needs->registers <= 0 || needs->registers > 255 || needs->frame < 0) broken("no kernel needs that", text);
    const std::string_view code = cubin.code(name);
    if (!code.empty() && (code.data() < text.data() || code.data() + code.size() > text.data() + text.size()))
      broken("machine code lies outside", text);
  }
}

}  // namespace

/// The first byte (a letter in the seeds) says whether the rest is a cubin, or changes of one: two bytes of a place and
/// the byte that is written there, again and again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    check(std::string(reinterpret_cast<const char*>(data + 1), size - 1));
    return 0;
  }
  std::string text = attune::tests::CubinText({{"kernel", "code", 168, 0}, {"other", "more", 255, 8}}).text();
  for (std::size_t at = 1; at + 3 <= size; at += 3)
    text[(data[at] + 256u * data[at + 1]) % text.size()] = static_cast<char>(data[at + 2]);
  check(text);
  return 0;
}
