// tests/bundle_text.h — bundles whose heads are sound and say whatever a test wants
#pragma once

#include <string>
#include <string_view>

#include "runtime/cache/entry.h"

namespace attune::tests {

/// One entry, of the content `key`, of which `stored` lies there and which is said to have had `size` bytes.
inline std::string bundle_text(std::string_view key, const std::string& stored, const std::string& size) {
  using runtime::cache_key;
  std::string out = "attune bundle 2\nentries: 1\nbytes: " + std::to_string(stored.size()) + "\n";
  out += cache_key(key).hex() + " 0 " + std::to_string(stored.size()) + " " + size + " " + cache_key(stored).name() +
         " a label\n";
  out += "head: " + cache_key(out).hex() + "\n\n";
  return out + stored;
}

}  // namespace attune::tests
