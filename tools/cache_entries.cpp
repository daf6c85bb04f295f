// tools/cache_entries.cpp — the cache as attune cache shows it: its folders, its entries and the facts of each
#include "tools/cache_entries.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>

#include <attune/error.h>

#include "runtime/machine/files.h"
#include "runtime/machine/options.h"

namespace attune::tools::cache {

namespace fs = std::filesystem;
using runtime::CacheFile, runtime::FileText;

namespace {

using Json = nlohmann::ordered_json;

/// Reads the head only, not the bytes.
Listed listed(const std::string& layer, CacheFile file) {
  constexpr std::size_t most_of_a_head = 1 << 16;
  const FileText text = runtime::read_file(file.path, most_of_a_head);
  Listed out{layer, std::move(file), {}};
  if (text.text)
    out.head = runtime::parse_head(*text.text);
  else
    out.head.wrong = text.missing ? "it is gone" : text.wrong;
  if (out.head.wrong.empty() && !out.head.key.starts_with(out.file.name)) out.head.wrong = "it belongs to another key";
  return out;
}

}  // namespace

std::vector<Layer> layers() {
  const runtime::Options& o = runtime::options();
  std::vector<Layer> out;
  if (!o.cache.empty()) out.push_back({"user", o.cache});
  if (!o.cache_system.empty()) out.push_back({"system", o.cache_system});
  if (out.empty())
    throw Error("no-cache", "there is no cache", {},
                "ATTUNE_CACHE is off, or it is unset and neither XDG_CACHE_HOME nor HOME names a folder",
                "set ATTUNE_CACHE to a folder");
  for (const Layer& layer : out) {
    std::error_code ignored;
    if (fs::exists(layer.folder, ignored) && !fs::is_directory(layer.folder, ignored))
      throw Error("no-cache", "the cache is not a folder", {.name = layer.folder.string()},
                  "a file has this name, so no kernel is cached", "set ATTUNE_CACHE to a folder");
    if (const std::string why = runtime::why_not_ours(layer.folder); layer.name == "user" && !why.empty())
      throw Error("no-cache", "the cache is not used", {.name = layer.folder.string()},
                  why + ", and its kernels would be executed",
                  "chown and chmod 700 it if its entries are yours, or set ATTUNE_CACHE to another folder");
  }
  return out;
}

fs::path own_folder() {
  const Layer first = layers().front();
  if (first.name != "user")
    throw Error("no-cache", "you have no cache of your own", {}, "ATTUNE_CACHE is off or unset",
                "set ATTUNE_CACHE to a folder");
  if (runtime::options().cache_read_only)
    throw Error("cache-read-only", "the cache is read-only", {.name = first.folder.string()}, "ATTUNE_CACHE_MODE is ro",
                "unset ATTUNE_CACHE_MODE");
  return first.folder;
}

std::string size_text(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array units{"KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; size >= 1000 && unit + 1 < units.size(); ++unit) size /= 1024;
  return fmt::format("{:.{}f} {}", size, size < 10 ? 1 : 0, units[unit]);
}

std::string ago(Moment used) {
  using namespace std::chrono;
  const auto age = duration_cast<seconds>(system_clock::now() - used).count();
  if (age < -60) return "in the future";
  if (age < 120) return "now";
  if (age < 2 * 3600) return fmt::format("{} min", age / 60);
  if (age < 48 * 3600) return fmt::format("{} h", age / 3600);
  return fmt::format("{} days", age / 86400);
}

std::string date(Moment at) {
  const std::time_t seconds = std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count();
  std::tm parts{};
  std::array<char, 64> text{};
  if (!gmtime_r(&seconds, &parts) || std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
    return "?";
  return text.data();
}

std::string entries(std::size_t n) { return fmt::format("{} {}", n, n == 1 ? "entry" : "entries"); }

std::vector<Listed> all_entries() {
  std::vector<Listed> out;
  for (const Layer& layer : layers())
    for (CacheFile& file : runtime::cache_files(layer.folder)) out.push_back(listed(layer.name, std::move(file)));
  return out;
}

std::string fact(const Listed& one, std::string_view name) {
  for (const auto& [known, value] : one.head.facts)
    if (known == name) return value;
  return {};
}

std::string kind(const Listed& one) {
  if (one.head.other_format) return "other version";
  if (!one.head.wrong.empty()) return "damaged";
  const std::string out = fact(one, "kind");
  return out.empty() ? "unknown" : out;
}

std::string what(const Listed& one) {
  if (!one.head.wrong.empty()) return one.head.wrong;
  std::string out;
  const auto add = [&](std::string_view name, const char* format) {
    if (const std::string value = fact(one, name); !value.empty())
      out += (out.empty() ? "" : " ") + fmt::format(fmt::runtime(format), value);
  };
  add("kernel", "{}");
  add("arch", "{}");
  add("type", "{}");
  add("d", "d={}");
  add("tile", "{}");
  add("registers", "{} registers");
  std::string mod;
  for (const char* part : {"score", "mask", "prob", "sink"})
    if (const std::string value = fact(one, part); !value.empty())
      mod += fmt::format("{}{} {}", mod.empty() ? "" : "; ", part, value);
  return mod.empty() ? out : out + ": " + mod;
}

Json json_of(const Listed& one) {
  Json out{{"id", one.file.name},
           {"layer", one.layer},
           {"file", one.file.path.string()},
           {"bytes", one.file.bytes},
           {"used", date(one.file.used)}};
  if (!one.head.wrong.empty()) out["wrong"] = one.head.wrong;
  for (const auto& [name, value] : one.head.facts) {
    if (!out["facts"].contains(name))
      out["facts"][name] = value;
    else if (out["facts"][name].is_array())
      out["facts"][name].push_back(value);
    else
      out["facts"][name] = Json::array({out["facts"][name], value});
  }
  return out;
}

std::size_t id_length(const std::vector<Listed>& all) {
  std::vector<std::string> names;
  for (const Listed& one : all) names.push_back(one.file.name);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::size_t length = 8;
  for (std::size_t i = 1; i < names.size(); ++i) {
    std::size_t same = 0;
    while (same < names[i].size() && names[i][same] == names[i - 1][same]) ++same;
    length = std::max(length, same + 1);
  }
  return length;
}

Listed entry_named(const std::string& id) {
  std::vector<Listed> found;
  for (const Layer& layer : layers())
    for (CacheFile& file : runtime::cache_files(layer.folder))
      if (file.name.starts_with(id) && (found.empty() || found[0].file.name != file.name))
        found.push_back(listed(layer.name, std::move(file)));
  if (id.empty() || found.empty())
    throw Error("unknown-entry", fmt::format("the cache has no entry `{}`", id), {}, "no entry's ID begins with that",
                "attune cache ls lists them all");
  if (found.size() > 1)
    throw Error("ambiguous-entry", fmt::format("`{}` may be {}", id, entries(found.size())), {},
                fmt::format("{} and {} begin so", found[0].file.name, found[1].file.name), "write more of the ID");
  return std::move(found[0]);
}

}  // namespace attune::tools::cache
