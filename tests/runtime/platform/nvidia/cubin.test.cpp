// tests/runtime/platform/nvidia/cubin.test.cpp — what a cubin says of its kernels, and damaged ones. Whether it is what
// NVIDIA's assembler says is a test of codegen's.
#include "runtime/platform/nvidia/nvrtc.h"

#include <random>

#include "tests/catch.h"
#include "tests/cubin_text.h"

namespace attune::tests {
namespace {

using runtime::cuda::Cubin, runtime::cuda::KernelNeeds;

const std::string& two_kernels() {
  static const std::string text =
      CubinText({{"first", "code of the first", 168, 0}, {"second_one", "and the second's", 255, 96}}).text();
  return text;
}

/// Every question has an answer, whose bytes are the file's own.
void ask(const std::string& text) {
  // A copy of exactly this size, so that a sanitizer sees a read beyond its end.
  const std::vector<char> own(text.begin(), text.end());
  const Cubin cubin(std::string_view(own.data(), own.size()));
  for (const char* name : {"first", "second_one", "", "third"}) {
    if (const auto needs = cubin.needs(name)) {
      CHECK(needs->registers > 0);
      CHECK(needs->registers <= 255);
      CHECK(needs->frame >= 0);
    }
    const std::string_view code = cubin.code(name);
    CHECK((code.empty() || (code.data() >= own.data() && code.data() + code.size() <= own.data() + own.size())));
  }
}

}  // namespace

TEST_CASE("a cubin says the registers, the local memory and the machine code of each kernel") {
  const Cubin cubin(two_kernels());
  const auto first = cubin.needs("first"), second = cubin.needs("second_one");
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->registers == 168);
  CHECK(first->frame == 0);
  CHECK(second->registers == 255);
  CHECK(second->frame == 96);
  CHECK(cubin.code("first") == "code of the first");
  CHECK(cubin.code("second_one") == "and the second's");
}

TEST_CASE("a cubin says nothing of kernels that it does not have, and other files nothing at all") {
  const Cubin cubin(two_kernels());
  for (const char* name : {"", "second", "second_one_", "third"}) {
    CHECK(!cubin.needs(name));
    CHECK(cubin.code(name).empty());
  }
  // 32 bits; the other order of bytes; a text.
  for (const char* begin : {"\177ELF\1\1", "\177ELF\2\2", "\177ELV\2\1", "int main"})
    CHECK(!Cubin(begin + two_kernels().substr(std::string_view(begin).size())).needs("first"));
  // No kernel has no registers, or more than instructions can name, or more local memory than there is.
  for (const auto& [registers, frame] : {std::pair{0u, 0u}, {256u, 0u}, {~0u, 0u}, {168u, 1u << 20}, {168u, ~0u}})
    CHECK(!Cubin(CubinText({{"first", "", registers, frame}}).text()).needs("first"));
}

TEST_CASE("a cubin that was cut off anywhere is read as far as it goes") {
  for (std::size_t size = 0; size <= two_kernels().size(); ++size) {
    ask(two_kernels().substr(0, size));
    // Its sections' headers are at its end.
    if (size < two_kernels().size()) CHECK(!Cubin(std::string_view(two_kernels()).substr(0, size)).needs("first"));
  }
}

TEST_CASE("a cubin in which any number is wrong is read without a read beyond its end") {
  for (std::size_t at = 0; at < two_kernels().size(); ++at)
    for (const std::string& other :
         {std::string(1, '\0'), std::string(1, '\x7f'), std::string(1, '\xff'), std::string(4, '\xff'),
          std::string(8, '\xff'), std::string("\xff\xff\xff\xff\xff\xff\xff\x7f"), std::string(8, '\0'),
          std::string("\xc0\xff\xff\xff\xff\xff\xff\xff")}) {
      if (other.size() > two_kernels().size() - at) continue;
      ask(std::string(two_kernels()).replace(at, other.size(), other));
    }
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string text = two_kernels();
    for (auto changes = 1 + random() % 6; changes > 0; --changes)
      text[random() % text.size()] = static_cast<char>(random());
    ask(text);
  }
}

}  // namespace attune::tests
