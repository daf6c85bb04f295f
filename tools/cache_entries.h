// tools/cache_entries.h — the cache as attune cache shows it: its folders, its entries and the facts of each
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/machine/cache/cache.h"
#include "runtime/machine/cache/objects.h"

namespace attune::tools::cache {

struct Layer {
  std::string name;  ///< user or system
  std::filesystem::path folder;
};
/// Throws an Error if there is no cache folder, or none that may be used.
std::vector<Layer> layers();
/// The user's own folder, which may be changed.
std::filesystem::path own_folder();

struct Listed {
  std::string layer;
  runtime::CacheFile file;
  runtime::ParsedHead head;
};
std::vector<Listed> all_entries();
/// The entry whose name begins with `id`; the user's if both folders have it.
Listed entry_named(const std::string& id);
/// The shortest prefix length that keeps all ids distinct; short ids are easy to copy.
std::size_t id_length(const std::vector<Listed>& all);

/// A fact of an entry by name; empty if it is unknown.
std::string fact(const Listed& one, std::string_view name);
std::string kind(const Listed& one);
/// A description such as: forward amx bf16 d=128: score, mask …
std::string what(const Listed& one);
nlohmann::ordered_json json_of(const Listed& one);

// Numbers as people read them.
using Moment = std::chrono::sys_time<std::chrono::microseconds>;
std::string size_text(std::uint64_t bytes);
std::string ago(Moment used);
std::string date(Moment at);
std::string entries(std::size_t n);

}  // namespace attune::tools::cache
