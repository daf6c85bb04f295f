// tests/emulated/resident.test.cpp — the resident compiler: what it compiles, and what it leaves to others
#include "runtime/platform/emulated/compiler.h"

#include <array>
#include <filesystem>
#include <string>
#include <thread>

#include <unistd.h>

#include "runtime/platform/emulated/files.h"
#include "tests/child.h"
#include "tests/emulated/gpu.h"

namespace attune::tests {
namespace {

const std::string wrong = "int f( {\n";

/// True, with a message, if the host's compiler is not the one that can be resident.
bool skipped_without_clang() {
  const std::string& name = runtime::emulated::host_compiler().command;
  if (name == "clang++") return false;
  WARN("[skip] only clang++ stays, and here it is " << name);
  return true;
}

/// True if this is an object file with this function.
bool has(const std::string& object, const std::string& name) {
  return object.starts_with("\177ELF") && object.find(name) != std::string::npos;
}
std::size_t precompiled() {
  std::size_t out = 0;
  for (const auto& file : std::filesystem::directory_iterator(runtime::emulated::folder()))
    out += file.path().extension() == ".pch";
  return out;
}
std::string compiled(const std::string& command, int nth) {
  return runtime::emulated::object_by_resident(command, "source.cu",
                                               fmt::format("extern \"C\" int nth{0}() {{ return {0}; }}\n", nth));
}

}  // namespace

TEST_CASE("the resident compiler compiles sources of several threads, and leaves wrong ones to others", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::string& name = runtime::emulated::host_compiler().command;
  const std::string command = name + " -x c++ -O0";
  if (name != "clang++") CHECK(compiled(command, 0) == "");
  if (skipped_without_clang()) return;
  std::array<int, 3> right{};
  std::array<std::thread, 3> threads;
  for (std::size_t i = 0; i < threads.size(); ++i)
    threads[i] = std::thread([&, i] {
      // More than one process takes.
      for (int nth = 0; nth < 20; ++nth) right[i] += has(compiled(command, nth), fmt::format("nth{}", nth));
    });
  for (std::thread& one : threads) one.join();
  CHECK(right == std::array{20, 20, 20});

  CHECK(runtime::emulated::object_by_resident(command, "source.cu", wrong) == "");
  // A source larger than a pipe.
  CHECK(runtime::emulated::object_by_resident(command, "source.cu", std::string(std::size_t{1} << 20, '\n')) == "");
  CHECK(has(compiled(command, 7), "nth7"));
  // A forked process has one of its own, and takes none from its parent.
  CHECK(in_child([&] { return has(compiled(command, 8), "nth8") ? 0 : 1; }) == 0);
  CHECK(has(compiled(command, 9), "nth9"));
  // So does one that lives on.
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t child = fork_child();
  if (child == 0) {
    char none = 0;
    close(ends[1]);
    _exit(read(ends[0], &none, 1) == 0 ? 0 : 1);
  }
  CHECK(has(compiled(command, 10), "nth10"));
  close(ends[1]);
  CHECK(status_of(child) == 0);
  close(ends[0]);
}

TEST_CASE("sources with the same head share a precompiled header, and others do not", "[emulated]") {
  if (skipped_without_compiler() || skipped_without_clang()) return;
  const runtime::emulated::Folder own;
  runtime::emulated::write_below(own.path(), "defines.h", "#pragma once\nextern \"C\" int NAME() { return 0; }\n");
  const std::string command = fmt::format("clang++ -x c++ -O0 -I{}", own.path().string());
  const auto source = [&](const std::string& head, const std::string& function) {
    return runtime::emulated::object_by_resident(
        command, "source.cu", fmt::format("// {1}\n{0}extern \"C\" int {1}() {{ return NAME(); }}\n", head, function));
  };
  const std::string first = "#define NAME from_first\n#include \"defines.h\"\n",
                    second = "#define NAME from_second\n#include \"defines.h\"\n", wrong_head = "#include \"none.h\"\n";
  const std::size_t before = precompiled();
  // More than one process takes.
  for (int nth = 0; nth < 40; ++nth) {
    const std::string function = fmt::format("source{}", nth), object = source(nth % 2 ? first : second, function);
    CHECK(has(object, function));
    CHECK(has(object, nth % 2 ? "from_first" : "from_second"));
    CHECK(!has(object, nth % 2 ? "from_second" : "from_first"));
  }
  CHECK(precompiled() == before + 2);
  CHECK(has(source("int NAME();\n", "headless"), "headless"));
  for (int nth = 0; nth < 2; ++nth) CHECK(source(wrong_head, "wrong") == "");
}

}  // namespace attune::tests
