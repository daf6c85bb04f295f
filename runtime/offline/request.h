// runtime/offline/request.h — a kernel that is asked for, as a line of a record and as the command that makes it
#pragma once

#include <string>
#include <vector>

#include "compiler/spell.h"
#include "compiler/trace.h"
#include "runtime/offline/shape.h"

namespace attune::runtime {

/// A Mod as it was written, and the calls.
struct Request {
  compiler::Spelt mod{};
  struct Capture {
    std::string name, type;  ///< type: f32[16, 256]
  };
  std::vector<Capture> captures{};
  struct Param {
    std::string name, value;  ///< 2 is an Int, 2.0 a Float
  };
  std::vector<Param> params{};
  std::string target{}, pass = "forward";
  Shape shape{};
};

/// Of a Mod as it was bound.
Request request_of(const compiler::Mod& written, const compiler::BoundMod& bound);

/// A line of JSON, as a manifest has it too.
std::string json_line(const Request& request);
/// As a word of a shell, whatever is in it.
std::string shell_quoted(std::string_view text);
/// For a shell.
std::string compile_command(const Request& request, const std::string& file);
/// For a reader, without the Mod.
std::string in_words(const Request& request);

}  // namespace attune::runtime
