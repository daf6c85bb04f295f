// tests/runtime/engines/cuda/kernels/tuned.test.cpp — the file of attune tune's results: calls work whatever it holds
#include "runtime/engines/cuda/kernels/tuned.h"

#include <attune/error.h>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include "codegen/cuda/headers.h"
#include "tests/catch.h"

namespace attune::runtime::cuda {
namespace {

const TunedKey key{.device = "a \"card\"", .kind = {codegen::CoverKind::causal, codegen::ModKind::heavy, {}}};

Tuned row(std::string_view kernel = "forward_sm90:m=128,n=96") {
  return {codegen::variant(kernel), 700.5, 650, "2026-11-21", std::string(codegen::headers_digest())};
}

std::string text() {
  TunedTable table;
  table.rows[key] = row();
  return print_tuned(table);
}

/// A separate folder.
struct Folder {
  std::filesystem::path path;
  Folder() : path(std::filesystem::temp_directory_path() / ("attune_tuned_" + std::to_string(getpid()))) {}
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST_CASE("what is remembered is read again", "[tuned]") {
  const TunedTable table = parse_tuned(text());
  CHECK(table.broken.empty());
  CHECK(table.notes.empty());
  REQUIRE(table.rows.size() == 1);
  CHECK(print_tuned(table) == text());
  const Remembered found = remembered(table, key);
  REQUIRE(found.preference);
  CHECK(found.preference->variant == row().variant);
  CHECK_FALSE(found.preference->only);
  CHECK(found.preference->origin.find("2026-11-21") != std::string::npos);
  for (auto other : {TunedKey{.device = "another"}, TunedKey{.device = key.device, .d = 64}}) {
    other.kind = key.kind;
    CHECK_FALSE(remembered(table, other).preference);
  }
}

TEST_CASE("a file that is no table is left alone, and is said", "[tuned]") {
  for (const char* wrong :
       {"", "{", "[]", "3", "null", "\xff", "{}", "{\"format\": 2, \"rows\": []}", "{\"format\": \"1\", \"rows\": []}",
        "{\"format\": 1.5, \"rows\": []}", "{\"format\": 99999999999999999999, \"rows\": []}", "{\"format\": 1}",
        "{\"format\": 1, \"rows\": {}}"}) {
    INFO(wrong);
    const TunedTable table = parse_tuned(wrong);
    CHECK_FALSE(table.broken.empty());
    CHECK(table.rows.empty());
    const Remembered found = remembered(table, key);
    CHECK_FALSE(found.preference);
    CHECK(found.notes.size() == 1);
  }
  // Every prefix of a good file.
  const std::string good = text();
  for (std::size_t n = 0; n + 2 < good.size(); ++n) CHECK_FALSE(parse_tuned(good.substr(0, n)).broken.empty());
  // Nested far too deeply.
  CHECK_FALSE(parse_tuned(std::string(100000, '[')).broken.empty());
}

TEST_CASE("a row of other types is left out, and the others stand", "[tuned]") {
  const std::string good = text();
  const auto with = [&](std::string_view what, std::string_view instead) {
    std::string out = good;
    const std::size_t at = out.find(what);
    REQUIRE(at != std::string::npos);
    out.replace(at, what.size(), instead);
    return parse_tuned(out);
  };
  for (const auto& [what, instead] : {std::pair{"\"arch\":90", "\"arch\":\"90\""},
                                      {"\"arch\":90", "\"arch\":-1"},
                                      {"\"arch\":90", "\"arch\":1e300"},
                                      {"\"arch\":90", "\"arch\":90.5"},
                                      {"\"d\":128", "\"d\":null"},
                                      {"\"dtype\":\"bf16\"", "\"dtype\":\"f64\""},
                                      {"\"cover\":\"causal\"", "\"cover\":[]"},
                                      {"\"cover\":\"causal\"", "\"cover\":\"slanted\""},
                                      {"\"kernel\":\"forward_sm90", "\"kernel\":\":"},
                                      {"\"date\":", "\"when\":"},
                                      {"\"tflops\":700.5", "\"tflops\":{}"}}) {
    INFO(what << " -> " << instead);
    const TunedTable table = with(what, instead);
    CHECK(table.broken.empty());
    CHECK(table.rows.empty());
    CHECK(table.notes.size() == 1);
  }
  const TunedTable two = with("\"rows\": [", "\"rows\": [7, {}, ");
  CHECK(two.rows.size() == 1);
  CHECK(two.notes.size() == 2);
  // The table accepts a kernel that does not exist: choose refuses it.
  CHECK(with("forward_sm90", "forward_sm99").rows.size() == 1);
}

TEST_CASE("what was found with other kernels does not hold", "[tuned]") {
  TunedTable table;
  table.rows[key] = row();
  table.rows[key].kernels = "of last year";
  const Remembered found = remembered(table, key);
  CHECK_FALSE(found.preference);
  REQUIRE(found.notes.size() == 1);
  CHECK(found.notes[0].find("other kernels") != std::string::npos);
}

TEST_CASE("findings gather in the file", "[tuned]") {
  const Folder folder;
  const std::filesystem::path path = folder.path / "deep" / "tuned.json";
  CHECK(read_tuned(path).rows.empty());
  CHECK(read_tuned(path).broken.empty());
  remember(path, key, row());
  TunedKey other = key;
  other.d = 64;
  remember(path, other, row());
  remember(path, key, row("forward_sm90:n=64"));
  const TunedTable table = read_tuned(path);
  REQUIRE(table.rows.size() == 2);
  CHECK(table.rows.at(key).variant.text() == "forward_sm90:n=64");
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path.parent_path())) ++files;
  CHECK(files == 1);
}

TEST_CASE("what is exact and what is not are tuned apart", "[tuned]") {
  TunedTable table;
  for (const DType type : {DType::bf16, DType::f32})
    for (const bool exact : {false, true}) {
      TunedKey one = key;
      one.dtype = type;
      one.exact = exact;
      table.rows[one] = row(exact ? "forward_sm80:n=64" : "forward_sm80:n=32");
    }
  const std::string printed = print_tuned(table);
  CHECK(parse_tuned(printed).rows.size() == 4);
  CHECK(print_tuned(parse_tuned(printed)) == printed);
  // The default of a type is left out, as in files written before the option existed.
  CHECK(text().find("exact") == std::string::npos);
  CHECK(printed.find("\"exact\":true") == printed.rfind("\"exact\":true"));
  CHECK(printed.find("\"exact\":false") == printed.rfind("\"exact\":false"));
  std::string wrong = printed;
  wrong.replace(wrong.find("\"exact\":true"), 12, "\"exact\":3   ");
  CHECK(parse_tuned(wrong).rows.size() == 3);
  CHECK(parse_tuned(wrong).notes.size() == 1);
}

TEST_CASE("a file of another version is not overwritten", "[tuned]") {
  const Folder folder;
  std::filesystem::create_directories(folder.path);
  const std::filesystem::path path = folder.path / "tuned.json";
  std::ofstream(path) << "{\"format\": 2}";
  CHECK_FALSE(read_tuned(path).broken.empty());
  CHECK_THROWS_AS(remember(path, key, row()), Error);
  std::ostringstream now;
  now << std::ifstream(path).rdbuf();
  CHECK(now.str() == "{\"format\": 2}");
  // A folder is not a file.
  CHECK_FALSE(read_tuned(folder.path).broken.empty());
  CHECK_THROWS_AS(remember(path / "below", key, row()), Error);
  CHECK_THROWS_AS(remember({}, key, row()), Error);
}

}  // namespace attune::runtime::cuda
