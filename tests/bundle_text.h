// tests/bundle_text.h — bundles with valid heads and any contents that a test needs
#pragma once

#include <string>
#include <string_view>

#include "runtime/machine/cache/cache.h"

namespace attune::tests {

/// A bundle of one entry for the content `key`: its bytes are `stored`, and its head claims `size` bytes.
inline std::string bundle_text(std::string_view key, const std::string& stored, const std::string& size) {
  using runtime::cache_key;
  std::string out = "attune bundle 2\nentries: 1\nbytes: " + std::to_string(stored.size()) + "\n";
  out += cache_key(key).hex() + " 0 " + std::to_string(stored.size()) + " " + size + " " + cache_key(stored).name() +
         " a label\n";
  out += "head: " + cache_key(out).hex() + "\n\n";
  return out + stored;
}

}  // namespace attune::tests
