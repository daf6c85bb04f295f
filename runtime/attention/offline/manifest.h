// runtime/attention/offline/manifest.h — the kernels that attune compile builds: mods x shapes x targets x passes, from
// options or a JSON file
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/attention/offline/shape.h"
#include "runtime/attention/offline/written.h"

namespace attune::runtime {

using Manifest = std::vector<Request>;

/// One object of a manifest: all combinations of its lists. `at`: its name in an Error.
struct ManifestLists {
  std::vector<Written> mods;
  /// The fields of each shape, with all values of each.
  std::vector<std::vector<std::pair<std::string, std::vector<std::string>>>> shapes;
  std::vector<std::string> targets, passes;
  std::string at;
};
void add_to(Manifest& manifest, const ManifestLists& lists);

/// JSON: an object, an array of them, or one per line, as ATTUNE_RECORD writes them.
Manifest read_manifest(const std::filesystem::path& path);
/// `name`: what Errors call it.
Manifest parse_manifest(const std::string& whole, const std::string& name);

}  // namespace attune::runtime
