// tools/manifest.h — what attune compile is to build: mods x shapes x targets x passes, from options or a file of JSON
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/offline/shape.h"
#include "tools/text.h"

namespace attune::tools {

/// What is built for one Mod, by its number.
struct ManifestRow {
  std::size_t mod = 0;
  runtime::TargetName target{};
  std::string pass;
  runtime::Shape shape{};
};

struct Manifest {
  std::vector<TextOptions> mods;
  std::vector<ManifestRow> rows;
};

/// One object of a manifest: all that its lists can be put together to. `at` is what an Error calls it.
struct ManifestLists {
  std::vector<TextOptions> mods;
  /// The fields of each shape, with the values that each may have.
  std::vector<std::vector<std::pair<std::string, std::vector<std::string>>>> shapes;
  std::vector<std::string> targets, passes;
  std::string at;
};
void add_to(Manifest& manifest, const ManifestLists& lists);

/// JSON: an object, an array of them, or one on each line, as ATTUNE_RECORD writes them.
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace attune::tools
