// tests/no_zstd/bundle.test.cpp — a build without zstd writes and reads bundles, and says that it reads no compressed
// one
#include "runtime/machine/cache/bundle.h"

#include <attune/error.h>

#include "tests/bundle_text.h"
#include "tests/catch.h"
#include "tests/golden.h"
#include "tests/refusal.h"

namespace attune::runtime {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

TEST_CASE("without zstd entries are stored as they are", "[bundle]") {
  REQUIRE_FALSE(has_zstd());
  const BundleEntry one{cache_key("a page"), "a label", {{{"kind", "cubin"}}, std::string(500, 'x')}};
  const std::string text = print_bundle({one});
  const auto bundle = Bundle::of(bytes_of(text), "a bundle");
  const Bundle::Item* item = bundle->find(one.key);
  REQUIRE(item);
  CHECK(item->stored.size() == item->size);
  CHECK(item->read().entry.value_or(CacheEntry{}).bytes == one.entry.bytes);
}

TEST_CASE("without zstd a compressed bundle is refused", "[bundle]") {
  const std::string text = tests::bundle_text("a page", "a frame of zstd's", "100");
  const Error e = tests::refusal([&] { Bundle::of(bytes_of(text), "kernels.attune"); });
  CHECK(e.code == "bundle-compressed");
  tests::golden_error("bundle-compressed", e.what());
}

}  // namespace attune::runtime
