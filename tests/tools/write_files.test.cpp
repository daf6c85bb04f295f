// tests/tools/write_files.test.cpp — the files that a verb writes: all of them, or none
#include "tools/output/output.h"

#include <array>
#include <fstream>
#include <sstream>
#include <string>

#include <attune/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/catch.h"

using namespace attune;
using namespace attune::tools;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("attune-write-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(path_), fs::directory_iterator()); }

 private:
  fs::path path_;
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

}  // namespace

TEST_CASE("when one file cannot be written none is", "[files]") {
  const Folder in;
  const auto refused = [&](const fs::path& bad) {
    CHECK_THROWS_AS(write_files(std::array{FileBytes{in / "good", "new"}, FileBytes{bad, "2"}}), Error);
  };
  refused(in / "missing/bad");
  CHECK(in.files() == 0);
  write_files(std::array{FileBytes{in / "good", "old"}});
  fs::create_directory(in / "folder");
  REQUIRE(mkfifo((in / "pipe").c_str(), 0600) == 0);
  fs::create_symlink("loop", in / "loop");
  for (const char* bad : {"folder", "pipe", "loop", "good/file"}) refused(in / bad);
  CHECK(text_of(in / "good") == "old");
  CHECK(in.files() == 4);
}

TEST_CASE("a file behind symbolic links is replaced, and the links stay", "[files]") {
  const Folder in;
  fs::create_symlink("second", in / "first");
  fs::create_symlink(in / "file", in / "second");
  for (const char* text : {"one", "two"}) {
    write_files(std::array{FileBytes{in / "first", text}});
    CHECK(text_of(in / "file") == text);
    CHECK(fs::is_symlink(in / "first"));
    CHECK(fs::is_symlink(in / "second"));
    CHECK(in.files() == 3);
  }
}

TEST_CASE("stdout has two names", "[files]") {
  CHECK(is_stdout("-"));
  CHECK(is_stdout("/dev/stdout"));
  CHECK_FALSE(is_stdout("./-"));
  CHECK_FALSE(is_stdout(""));
}
