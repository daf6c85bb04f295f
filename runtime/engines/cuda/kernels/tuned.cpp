// runtime/engines/cuda/kernels/tuned.cpp — the fastest kernels on a machine: the results of attune tune, in one file
#include "runtime/engines/cuda/kernels/tuned.h"

#include <array>
#include <cmath>
#include <fstream>
#include <sstream>
#include <system_error>

#include <attune/error.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "codegen/cuda/headers.h"
#include "runtime/machine/files.h"
#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"

namespace attune::runtime::cuda {
namespace {

using Json = nlohmann::ordered_json;

constexpr int format = 1;

std::optional<DType> dtype_named(std::string_view name) {
  for (const DType type : {DType::bf16, DType::f16, DType::e4m3, DType::f32})
    if (name_of(type) == name) return type;
  return std::nullopt;
}

/// Reads the fields of a row; `wrong` is the reason if they are not a valid row.
struct Row {
  const Json& from;
  std::string wrong{};

  std::string text(const char* name) {
    const auto at = from.find(name);
    if (at != from.end() && at->is_string()) return at->get<std::string>();
    if (wrong.empty()) wrong = fmt::format("`{}` is not text", name);
    return {};
  }
  double number(const char* name) {
    const auto at = from.find(name);
    if (at != from.end() && at->is_number() && std::isfinite(at->get<double>())) return at->get<double>();
    if (wrong.empty()) wrong = fmt::format("`{}` is not a number", name);
    return 0;
  }
  int whole(const char* name, int most) {
    const double value = number(name);
    if (value >= 1 && value <= most && value == std::floor(value)) return static_cast<int>(value);
    if (wrong.empty()) wrong = fmt::format("`{}` is not from 1 to {}", name, most);
    return 1;
  }
  /// Nothing if the field is left out.
  std::optional<bool> flag(const char* name) {
    const auto at = from.find(name);
    if (at == from.end()) return std::nullopt;
    if (at->is_boolean()) return at->get<bool>();
    if (wrong.empty()) wrong = fmt::format("`{}` is neither true nor false", name);
    return std::nullopt;
  }
  template <class T>
  T word(const char* name, std::optional<T> (*named)(std::string_view)) {
    const std::string value = text(name);
    if (const std::optional<T> found = named(value)) return *found;
    if (wrong.empty()) wrong = fmt::format("`{}` cannot be `{}`", name, value);
    return {};
  }
};

void add_row(const Json& from, TunedTable& into) {
  if (!from.is_object()) {
    into.notes.emplace_back("a row is not an object");
    return;
  }
  Row row{from};
  TunedKey key{.device = row.text("device"),
               .arch = row.whole("arch", 999),
               .dtype = row.word("dtype", dtype_named),
               .d = row.whole("d", 4096),
               .dv = row.whole("dv", 4096),
               .kind = {row.word("cover", codegen::cover_kind_named), row.word("mod", codegen::mod_kind_named),
                        row.word("length", codegen::length_named)}};
  key.exact = codegen::is_exact(row.flag("exact"), key.dtype);
  Tuned tuned{.variant = {},
              .tflops = row.number("tflops"),
              .usual_tflops = row.number("usual_tflops"),
              .date = row.text("date"),
              .kernels = row.text("kernels")};
  const std::string kernel = row.text("kernel");
  if (row.wrong.empty()) try {
      tuned.variant = codegen::variant(kernel);
    } catch (const Error& e) {
      row.wrong = e.why;
    }
  if (row.wrong.empty())
    into.rows.insert_or_assign(std::move(key), std::move(tuned));
  else
    into.notes.push_back("a row is left out: " + row.wrong);
}

Json json_of(const TunedKey& key, const Tuned& row) {
  Json out{{"device", key.device},
           {"arch", key.arch},
           {"dtype", std::string(name_of(key.dtype))},
           {"d", key.d},
           {"dv", key.dv},
           {"cover", std::string(name_of(key.kind.cover))},
           {"mod", std::string(name_of(key.kind.mod))},
           {"length", std::string(name_of(key.kind.length))}};
  if (key.exact != codegen::is_exact({}, key.dtype)) out["exact"] = key.exact;
  out.update({{"kernel", row.variant.text()},
              {"tflops", row.tflops},
              {"usual_tflops", row.usual_tflops},
              {"date", row.date},
              {"kernels", row.kernels}});
  return out;
}

[[noreturn]] void cannot_write(const std::filesystem::path& path, const std::string& why) {
  throw Error("file-unwritable", "the results of tuning cannot be saved", {.name = path.string()}, why,
              "set ATTUNE_CACHE to a folder that attune may write to, or remove the file");
}

}  // namespace

TunedKey tuned_key(const std::string& device, const codegen::GpuParts& parts, const codegen::CallSpec& call) {
  return {.device = device,
          .arch = call.spec.arch,
          .dtype = call.spec.dtype,
          .d = call.spec.d,
          .dv = call.spec.dv,
          .kind = codegen::call_kind(parts, call.length),
          .exact = call.spec.exact};
}

TunedTable parse_tuned(std::string_view text) {
  TunedTable out;
  const Json all = Json::parse(text, nullptr, false);
  if (all.is_discarded() || !all.is_object()) {
    out.broken = "it holds no JSON object";
    return out;
  }
  const auto version = all.find("format");
  if (version == all.end() || !version->is_number_integer() || version->get<std::int64_t>() != format) {
    out.broken = fmt::format("its format is not {}", format);
    return out;
  }
  const auto rows = all.find("rows");
  if (rows == all.end() || !rows->is_array()) {
    out.broken = "it has no rows";
    return out;
  }
  for (const Json& row : *rows) add_row(row, out);
  return out;
}

std::string print_tuned(const TunedTable& table) {
  std::string rows;
  for (const auto& [key, row] : table.rows) rows += (rows.empty() ? "\n  " : ",\n  ") + json_of(key, row).dump();
  return fmt::format("{{\"format\": {}, \"rows\": [{}\n]}}\n", format, rows);
}

std::filesystem::path tuned_path() {
  if (options().cache.empty()) return {};
  return std::filesystem::path(options().cache) / "tuned.json";
}

TunedTable read_tuned(const std::filesystem::path& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return {};
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (file.good() || file.eof()) return parse_tuned(text.str());
  TunedTable out;
  out.broken = "it cannot be read";
  return out;
}

void remember(const std::filesystem::path& path, const TunedKey& key, const Tuned& row) {
  if (path.empty()) cannot_write("tuned.json", "there is no folder to keep it in");
  if (options().cache_read_only) cannot_write(path, "ATTUNE_CACHE_MODE is ro");
  TunedTable table = read_tuned(path);
  // Not overwritten: another version of attune may still want the file.
  if (!table.broken.empty()) cannot_write(path, table.broken);
  table.rows.insert_or_assign(key, row);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) cannot_write(path, error.message());
  const std::string why = replace_file(path, print_tuned(table), path.string() + ".XXXXXX", Durable::yes);
  if (!why.empty()) cannot_write(path, why);
}

Remembered remembered(const TunedTable& table, const TunedKey& key) {
  Remembered out;
  if (!table.broken.empty()) out.notes.push_back(table.broken);
  out.notes.insert(out.notes.end(), table.notes.begin(), table.notes.end());
  const auto found = table.rows.find(key);
  if (found == table.rows.end()) return out;
  const Tuned& row = found->second;
  if (row.kernels != codegen::headers_digest()) {
    out.notes.push_back(fmt::format("{} was tuned with other kernels, on {}, and is ignored: run attune tune again",
                                    row.variant.text(), row.date));
    return out;
  }
  out.preference = {row.variant, false,
                    fmt::format("{} was found by attune tune on {}: {:.0f} TFLOP/s, the default {:.0f}",
                                row.variant.text(), row.date, row.tflops, row.usual_tflops)};
  return out;
}

Remembered remembered(const TunedKey& key) {
  static constinit Once<const TunedTable> table;
  Remembered out = remembered(table.get([] { return read_tuned(tuned_path()); }), key);
  for (std::string& note : out.notes) note = fmt::format("{}: {}", tuned_path().string(), note);
  return out;
}

}  // namespace attune::runtime::cuda
