// tests/runtime/machine/cache/cache_folder.h — what tests of the cache share: a separate folder, entries, files as text
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/machine/cache/cache.h"
#include "tests/catch.h"

namespace attune::tests {

/// A folder that is removed at the end, together with the folder above it, which is made for it too.
struct CacheFolder {
  std::filesystem::path path;
  explicit CacheFolder(const std::string& name = "plain") {
    std::string made = (std::filesystem::temp_directory_path() / "attune-cache-XXXXXX").string();
    REQUIRE(mkdtemp(made.data()) != nullptr);
    path = std::filesystem::path(made) / name;
  }
  ~CacheFolder() {
    std::error_code error;
    std::filesystem::permissions(path.parent_path(), std::filesystem::perms::owner_all, error);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
    std::filesystem::remove_all(path.parent_path(), error);
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;
};

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}
inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

inline runtime::CacheEntry entry(std::string bytes) {
  return {{{"kernel", "forward_sm90"}, {"made by", "NVRTC 13.0"}}, std::move(bytes)};
}

/// Different for each number, so that no entry looks like another.
inline std::string bytes_of(unsigned i) { return std::string(1000 + i * 977 % 60000, static_cast<char>('a' + i % 26)); }

}  // namespace attune::tests
