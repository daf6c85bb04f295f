// runtime/attention/offline/request.h — a request for a kernel, as a line of a record and as the command that compiles
// it
#pragma once

#include <string>
#include <string_view>

#include "compiler/bind.h"
#include "compiler/mod.h"
#include "runtime/attention/offline/shape.h"
#include "runtime/machine/cache/objects.h"

namespace attune::runtime {

/// The request for a Mod with the tensors and numbers of its slots.
Request request_of(const compiler::Mod& written, const compiler::Args& args);

/// A line of JSON, in the form that manifests use too.
std::string json_line(const Request& request);
/// Quoted as one word of a shell, whatever it contains.
std::string shell_quoted(std::string_view text);
/// A command line for a shell.
std::string compile_command(const Request& request, const std::string& file);
/// For a human reader, without the Mod.
std::string in_words(const Request& request);
/// The texts that records and Errors quote.
Purpose::Text text_of(const Request& request);

}  // namespace attune::runtime
