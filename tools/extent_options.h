// tools/extent_options.h — options for the size of a cover or a picture: --q-len, --kv-len, --tile, --batch, --heads
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/engines/cover/tiles.h"

namespace CLI {
class App;
}

namespace attune::tools {

struct ExtentOptions {
  std::int64_t q_len = 128;
  std::string tile = "16x16";
  std::optional<std::int64_t> kv_len{};
  std::int64_t q_offset = 0, batch = 1, heads = 1, b = 0, h = 0;

  /// The help shows the members' present values as defaults. `beside_call`: --seq and --kv-seq are the call's.
  void add_to(CLI::App& verb, bool beside_call = false);
  /// Refuses sizes out of range, and more pairs than 64 bits can count.
  runtime::Extent extent() const;
};

}  // namespace attune::tools
