// tools/compile/cache.cpp — attune cache: lists, checks and removes compiled kernels
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <attune/error.h>

#include "runtime/machine/cache/cache.h"
#include "runtime/machine/cache/objects.h"
#include "runtime/machine/files.h"
#include "runtime/machine/options.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace cache {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using runtime::CacheFile, runtime::FileText, runtime::Pruned, runtime::PruneTo;

struct Layer {
  std::string name;  ///< user or system
  std::filesystem::path folder;
};

struct Listed {
  std::string layer;
  runtime::CacheFile file;
  runtime::ParsedHead head;
};

// Numbers as people read them.
using Moment = std::chrono::sys_time<std::chrono::microseconds>;

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

/// Throws an Error if there is no cache folder, or none that may be used.
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

/// The user's own folder, which may be changed.
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
  return timestamp(std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count());
}

std::string entries(std::size_t n) { return fmt::format("{} {}", n, n == 1 ? "entry" : "entries"); }

std::vector<Listed> all_entries() {
  std::vector<Listed> out;
  for (const Layer& layer : layers())
    for (CacheFile& file : runtime::cache_files(layer.folder)) out.push_back(listed(layer.name, std::move(file)));
  return out;
}

/// A fact of an entry by name; empty if it is unknown.
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

/// A description such as: forward amx bf16 d=128: score, mask …
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

/// The shortest prefix length that keeps all ids distinct; short ids are easy to copy.
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

/// The whole of an entry's file, or why it cannot be read.
runtime::ParsedEntry read(const FileText& text, const CacheFile& file) {
  return text.text ? runtime::parse_entry(*text.text, file.name)
                   : runtime::ParsedEntry{std::nullopt, text.wrong, false};
}

/// The entry whose name begins with `id`; the user's if both folders have it.
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

struct CacheOptions {
  bool json = false, yes = false, repair = false, dry = false;
  std::string id, sort = "used";
  std::optional<std::string> out, to, older_than;
};

/// 90, 30m, 12h, 7d or 4w; or 200M for bytes, with the given units.
std::uint64_t quantity(const std::string& option, const std::string& text, const std::string& units,
                       const std::vector<std::uint64_t>& of, const std::string& takes) {
  std::string_view digits = text;
  std::uint64_t value = 0, unit = 1;
  if (!digits.empty())
    if (const std::size_t i = units.find(digits.back()); i != std::string::npos) {
      unit = of[i];
      digits.remove_suffix(1);
    }
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size() || value > (1ull << 33))
    throw Error("bad-number", fmt::format("{} cannot be `{}`", option, text), {.name = option}, "it takes " + takes,
                "see attune cache prune --help");
  return value * unit;
}

void ls(const CacheOptions& o) {
  std::vector<Listed> all = all_entries();
  if (o.sort == "used") std::ranges::stable_sort(all, [](auto& a, auto& b) { return a.file.used > b.file.used; });
  if (o.sort == "size") std::ranges::stable_sort(all, [](auto& a, auto& b) { return a.file.bytes > b.file.bytes; });
  if (o.json) {
    for (const Listed& one : all) write_json(json_of(one));
    return;
  }
  if (all.empty()) {
    print_out("no entries in {}\n", layers().front().folder.string());
    return;
  }
  const std::size_t id = id_length(all);
  const bool two = layers().size() > 1;
  print_out("{:<{}}  {}{:<13}  {:>8}  {:>9}  {:>7}  what\n", "id", id, two ? "layer   " : "", "kind", "size", "used",
            "seconds");
  for (const Listed& one : all)
    print_out("{:<{}}  {}{:<13}  {:>8}  {:>9}  {:>7}  {}\n", one.file.name.substr(0, id), id,
              two ? fmt::format("{:<6}  ", one.layer) : "", kind(one), size_text(one.file.bytes), ago(one.file.used),
              fact(one, "seconds"), what(one));
}

void show(const CacheOptions& o) {
  const Listed one = entry_named(o.id);
  if (o.out) {
    const runtime::ParsedEntry entry = read(runtime::read_file(one.file.path), one.file);
    if (!entry.entry)
      throw Error("bad-entry", fmt::format("the bytes of {} cannot be read", one.file.name),
                  {.name = one.file.path.string()}, entry.wrong, "attune cache verify --repair removes such entries");
    const std::array files{FileBytes{*o.out, entry.entry->bytes}};
    write_files(files);
    if (is_stdout(*o.out)) return;
  }
  if (o.json) {
    write_json(json_of(one), 2);
    return;
  }
  const auto line = [](std::string_view name, std::string_view value) { print_out("{:<10} {}\n", name, value); };
  line("id", one.file.name);
  line("file", one.file.path.string());
  line("layer", one.layer);
  line("size", fmt::format("{} ({} bytes)", size_text(one.file.bytes), one.file.bytes));
  line("used", date(one.file.used));
  if (!one.head.wrong.empty()) line("damaged", one.head.wrong);
  for (const auto& [name, value] : one.head.facts) line(name, value);
}

void stats(const CacheOptions& o) {
  struct Sum {
    std::size_t entries = 0;
    std::uint64_t bytes = 0;
  };
  const runtime::Options& options = runtime::options();
  const std::vector<Listed> all = all_entries();
  Json out;
  for (const Layer& layer : layers()) {
    Sum sum;
    std::map<std::string, Sum> kinds;
    double seconds = 0;
    for (const Listed& one : all) {
      if (one.layer != layer.name) continue;
      for (Sum* s : {&sum, &kinds[kind(one)]}) {
        ++s->entries;
        s->bytes += one.file.bytes;
      }
      seconds += std::atof(fact(one, "seconds").c_str());
    }
    const bool user = layer.name == "user";
    const std::string mode = !user || options.cache_read_only ? "read only" : "written";
    Json& json = out[layer.name];
    json = {{"folder", layer.folder.string()}, {"mode", mode}, {"entries", sum.entries}, {"bytes", sum.bytes}};
    if (user) json["limit"] = options.cache_bytes;
    json["seconds"] = seconds;
    json["kinds"] = Json::object();
    for (const auto& [name, s] : kinds) json["kinds"][name] = {{"entries", s.entries}, {"bytes", s.bytes}};
    if (o.json) continue;
    print_out("{:<7} {}   — {}\n", layer.name, layer.folder.string(), mode);
    print_out("  entries  {}\n  size     {}{}\n", sum.entries, size_text(sum.bytes),
              user ? fmt::format(" of {}", size_text(options.cache_bytes)) : "");
    for (const auto& [name, s] : kinds) print_out("  {:<13} {}, {}\n", name, entries(s.entries), size_text(s.bytes));
    print_out("  took     {:.1f} s to compile, all of them\n", seconds);
  }
  if (o.json) write_json(out, 2);
}

/// 0 if all entries are good or were repaired, else 1.
int verify(const CacheOptions& o) {
  if (o.repair) own_folder();
  std::size_t good = 0, left = 0, removed = 0;
  Json bad = Json::array();
  for (const Layer& layer : layers())
    for (const CacheFile& file : runtime::cache_files(layer.folder)) {
      const FileText text = runtime::read_file(file.path);
      if (text.missing) continue;
      const runtime::ParsedEntry entry = read(text, file);
      const std::string& wrong = entry.wrong;
      // Only the version that wrote it can check it.
      if (entry.other_format) continue;
      if (wrong.empty()) {
        ++good;
        continue;
      }
      const bool gone = o.repair && layer.name == "user" && runtime::remove_whatever(file.path);
      ++(gone ? removed : left);
      if (o.json)
        bad.push_back({{"id", file.name},
                       {"layer", layer.name},
                       {"file", file.path.string()},
                       {"wrong", wrong},
                       {"removed", gone}});
      else
        print_out("{} {}: {}\n", gone ? "removed" : "bad    ", file.path.string(), wrong);
    }
  if (o.json)
    write_json(Json{{"sound", good}, {"bad", left + removed}, {"removed", removed}, {"entries", bad}}, 2);
  else
    print_out("{} sound, {} bad{}\n", entries(good), left + removed,
              o.repair ? fmt::format(", {} removed", removed) : "");
  return left ? 1 : 0;
}

void tell(const CacheOptions& o, const fs::path& folder, const Pruned& gone) {
  if (o.json)
    write_json(Json{{"folder", folder.string()},
                    {"removed", {{"entries", gone.entries}, {"bytes", gone.bytes}}},
                    {"left_bytes", gone.left},
                    {"dry", o.dry}});
  else
    print_out("{} {}, {}; {} left in {}\n", o.dry ? "would remove" : "removed", entries(gone.entries),
              size_text(gone.bytes), size_text(gone.left), folder.string());
}

void clear(const CacheOptions& o) {
  const fs::path folder = own_folder();
  if (!o.yes && !o.dry) {
    const Pruned all = runtime::prune(folder, {.most = 0, .to = 0, .dry = true});
    if (all.entries > 0) {
      if (!isatty(STDIN_FILENO))
        throw Error("not-confirmed", fmt::format("{} would be removed", entries(all.entries)),
                    {.name = folder.string()}, "there is no terminal to ask on", "add --yes");
      fmt::print(stderr, "remove {}, {}, from {}? [y/N] ", entries(all.entries), size_text(all.bytes), folder.string());
      std::string answer;
      if (!std::getline(std::cin, answer) || (answer != "y" && answer != "Y" && answer != "yes")) {
        fmt::print(stderr, "nothing was removed\n");
        return;
      }
    }
  }
  tell(o, folder, runtime::prune(folder, {.most = 0, .to = 0, .dry = o.dry}));
}

void prune(const CacheOptions& o) {
  const fs::path folder = own_folder();
  constexpr std::uint64_t K = 1024, hour = 3600;
  PruneTo to{.dry = o.dry};
  if (o.older_than)
    to.age = std::chrono::seconds(quantity("--older-than", *o.older_than, "smhdw",
                                           {1, 60, hour, 24 * hour, 7 * 24 * hour},
                                           "a number of seconds, or with m, h, d or w"));
  if (o.to)
    to.most = to.to = quantity("--to", *o.to, "KMG", {K, K * K, K * K * K}, "a number of bytes, or with K, M or G");
  else if (!o.older_than)
    to.most = to.to = runtime::options().cache_bytes;
  tell(o, folder, runtime::prune(folder, to));
}

using Added = std::pair<CLI::App*, std::shared_ptr<CacheOptions>>;

Added added(CLI::App& verb, const char* name, const char* does, const char* footer) {
  auto o = std::make_shared<CacheOptions>();
  CLI::App* sub = verb.add_subcommand(name, does);
  sub->add_flag("--json", o->json, "as JSON");
  sub->footer(footer);
  return {sub, o};
}

void ls_verb(CLI::App& verb) {
  const auto [sub, o] = added(verb, "ls", "one line for each entry: what it is, its size, its last use",
                              "Reads headers only; attune cache verify reads everything. `seconds` is the time it "
                              "took to compile.\nExamples:\n  attune cache ls --sort size");
  sub->add_option("--sort", o->sort, "used (the last one first) if left out")->type_name("used|size|id");
  sub->callback([o = o] {
    constexpr std::array words{"used", "size", "id"};
    if (std::ranges::find(words, o->sort) == words.end())
      throw Error("bad-choice", fmt::format("--sort cannot be `{}`", o->sort), {.name = "--sort"},
                  "it takes used, size or id", "write one of these");
    ls(*o);
  });
}

void show_verb(CLI::App& verb) {
  const auto [sub, o] = added(verb, "show", "the header of an entry, and its bytes into a file",
                              "Examples:\n  attune cache show 3f9a --out kernel.cubin");
  sub->add_option("ID", o->id, "the ID of an entry, or a unique prefix of it")->required();
  sub->add_option("--out", o->out, "write the object or cubin there; - for stdout, without the header")
      ->type_name("FILE");
  sub->callback([o = o] { show(*o); });
}

void stats_verb(CLI::App& verb) {
  const auto [sub, o] = added(verb, "stats", "number and size of entries by kind, and the folders",
                              "Examples:\n  attune cache stats --json");
  sub->callback([o = o] { stats(*o); });
}

void verify_verb(CLI::App& verb) {
  const auto [sub, o] = added(verb, "verify", "reads every entry and reports those that are damaged",
                              "Examples:\n  attune cache verify --repair\n"
                              "Exit:\n  1  there are bad entries that were not removed");
  sub->add_flag("--repair", o->repair, "remove damaged entries: they are compiled again when needed");
  sub->callback([o = o] {
    if (const int code = verify(*o)) throw CLI::RuntimeError(code);
  });
}

void clear_verb(CLI::App& verb) {
  const auto [sub, o] = added(verb, "clear", "removes every entry of the user's folder",
                              "Keeps the results of attune tune. Asks on a terminal; elsewhere it needs --yes.\n"
                              "Examples:\n  attune cache clear --yes");
  sub->add_flag("--yes", o->yes, "do not ask");
  sub->add_flag("--dry", o->dry, "remove nothing, only print what would be removed");
  sub->callback([o = o] { clear(*o); });
}

void prune_verb(CLI::App& verb) {
  const auto [sub, o] = added(verb, "prune", "removes the entries that were not used for the longest time",
                              "Without an option, prunes to ATTUNE_CACHE_SIZE.\n"
                              "Examples:\n  attune cache prune --to 200M\n  attune cache prune --older-than 30d --dry");
  sub->add_option("--to", o->to, "until at most this much is left")->type_name("SIZE");
  sub->add_option("--older-than", o->older_than, "entries last used longer ago than this: 90, 30m, 12h, 7d, 4w")
      ->type_name("TIME");
  sub->add_flag("--dry", o->dry, "remove nothing, only print what would be removed");
  sub->callback([o = o] { prune(*o); });
}

}  // namespace
}  // namespace cache

void add_cache(CLI::App& app) {
  using namespace cache;
  CLI::App& verb = *app.add_subcommand("cache", "the cache of compiled kernels: list, check and remove entries");
  verb.require_subcommand(0, 1);
  verb.callback([&verb] {
    if (verb.get_subcommands().empty())
      throw Error("no-verb", "attune cache is called without a verb", {},
                  "it has ls, show, stats, verify, clear, prune", "write attune cache VERB, or attune cache --help");
  });
  verb.footer("Folders, limits and what an entry is: docs/cache.md. See attune cache VERB --help.\n"
              "Examples:\n  attune cache ls\n  attune cache stats");
  for (const auto add : {ls_verb, show_verb, stats_verb, verify_verb, clear_verb, prune_verb}) add(verb);
}

}  // namespace attune::tools
