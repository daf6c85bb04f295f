// tools/compile/bundle.cpp — attune bundle: lists a bundle's entries and checks that it is intact
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

#include <attune/error.h>

#include "runtime/machine/cache/bundle.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

struct BundleOptions {
  std::string file;
  bool verify = false, json = false;
};

void bundle(const BundleOptions& o) {
  const auto bundle = runtime::Bundle::open(o.file);
  nlohmann::ordered_json all{{"file", o.file}, {"entries", nlohmann::ordered_json::array()}};
  std::size_t damaged = 0, stored = 0, bytes = 0;
  std::string first;
  for (const runtime::Bundle::Item& item : bundle->items()) {
    const runtime::ParsedEntry entry = o.verify || o.json ? item.read() : runtime::ParsedEntry{};
    const std::string why = o.verify ? entry.wrong : "";
    if (!why.empty() && damaged++ == 0) first = fmt::format("{}: {}", item.label, why);
    stored += item.stored.size();
    bytes += item.size;
    if (!o.json) {
      print_out("{} {:>8} {:>8}  {}{}\n", item.key.name(), item.stored.size(), item.size, item.label,
                why.empty() ? "" : "   — " + why);
      continue;
    }
    nlohmann::ordered_json one{{"key", item.key.hex()},
                               {"stored", item.stored.size()},
                               {"bytes", item.size},
                               {"label", std::string(item.label)}};
    if (entry.entry)
      for (const auto& [name, value] : entry.entry->facts) one["facts"][name] = value;
    if (o.verify) one["good"] = why.empty();
    all["entries"].push_back(std::move(one));
  }
  if (o.json)
    write_json(all, 2);
  else
    print_out("{} entries, {:.1f} KB stored of {:.1f} KB{}\n", bundle->items().size(),
              static_cast<double>(stored) / 1000, static_cast<double>(bytes) / 1000,
              o.verify && !damaged ? ", all intact" : "");
  if (damaged)
    throw Error("bundle-damaged", fmt::format("{} entries of a bundle are damaged", damaged), {.name = o.file}, first,
                "copy it again, or rebuild it with attune compile");
}

}  // namespace

void add_bundle(CLI::App& app) {
  auto o = std::make_shared<BundleOptions>();
  CLI::App& verb = *app.add_subcommand("bundle", "the contents of a bundle that attune compile wrote");
  verb.add_option("FILE", o->file, "the bundle")->required();
  verb.add_flag("--verify", o->verify, "check every byte");
  verb.add_flag("--json", o->json, "as JSON, with details of each entry");
  verb.footer("Example:\n  attune bundle alibi.attune --verify");
  verb.callback([o] { bundle(*o); });
}

}  // namespace attune::tools
