// tests/runtime/engines/dump.test.cpp — a dumped attention reads back as the same one
#include "runtime/engines/dump.h"

#include <attune/attune.h>

#include <array>
#include <sstream>

#include "tests/catch.h"
#include "tests/numerics/corpus.h"

namespace attune {
namespace {

/// An attention from lines in mod_file's format.
struct Reader {
  Text text;
  Attention attention;

  explicit Reader(const std::string& file) {
    std::istringstream lines(file);
    for (std::string line; std::getline(lines, line);) take(line);
  }

 private:
  void take(const std::string& line) {
    std::istringstream words(line);
    std::string what, name, type, rank;
    words >> what;
    const std::string rest = line.substr(std::min(line.size(), line.find_first_not_of(' ', what.size())));
    if (what == "capture") {
      int n = 0;
      words >> name >> type >> rank >> n;
      text.capture(name, tensor(type, n));
    } else if (what == "param") {
      words >> name >> type;
      type == "Float" ? text.param(name, 1.0f) : text.param(name, 1);
    } else if (what == "score") {
      attention.score = text.score(rest);
    } else if (what == "mask") {
      attention.mask = text.mask(rest);
    } else if (what == "prob") {
      attention.prob = text.prob(rest);
    } else if (what == "sink") {
      attention.sink = text.sink(rest);
    } else {
      FAIL("a line begins with " << what);
    }
  }
  static Tensor tensor(const std::string& type, int rank) {
    Tensor out;
    for (int t = 0; t <= static_cast<int>(DType::boolean); ++t)
      if (name_of(static_cast<DType>(t)) == type) out.dtype = static_cast<DType>(t);
    out.rank = rank;
    out.shape.fill(1);
    return out;
  }
};

void reads_back(const Attention& attention, const std::string& called) {
  const compiler::Mod written = compiler::trace(attention).mod;
  const std::string file = runtime::mod_file(written);
  INFO(called << "\n" << file);
  const Reader read(file);
  CHECK(compiler::trace(read.attention).mod.digest() == written.digest());
  CHECK(compiler::lower(read.attention).mod.digest() == compiler::lower(attention).mod.digest());
  CHECK(runtime::mod_file(compiler::trace(read.attention).mod) == file);
}

}  // namespace

TEST_CASE("an attention in a dump reads back to the same digest", "[dump]") {
  reads_back({}, "plain");
  for (const tests::CorpusMod& mod : tests::corpus()) {
    const tests::Made made = tests::make(mod, 1);
    reads_back(made.attention, mod.name);
  }
}

TEST_CASE("without ATTUNE_DUMP nothing is written", "[dump]") { CHECK_FALSE(runtime::dumps()); }

}  // namespace attune
