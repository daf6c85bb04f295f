// tools/cache.cpp — attune cache: lists, checks and removes compiled kernels
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include <attune/error.h>

#include "runtime/machine/files.h"
#include "runtime/machine/options.h"
#include "tools/cache_entries.h"
#include "tools/output.h"
#include "tools/verbs.h"
#include "tools/write_files.h"

namespace attune::tools {
namespace cache {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using runtime::CacheFile, runtime::FileText, runtime::Pruned, runtime::PruneTo;

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
    const FileText text = runtime::read_file(one.file.path);
    const runtime::ParsedEntry entry = text.text ? runtime::parse_entry(*text.text, one.file.name)
                                                 : runtime::ParsedEntry{std::nullopt, text.wrong, false};
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
      const runtime::ParsedEntry entry = text.text ? runtime::parse_entry(*text.text, file.name)
                                                   : runtime::ParsedEntry{std::nullopt, text.wrong, false};
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
