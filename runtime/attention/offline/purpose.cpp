// runtime/attention/offline/purpose.cpp — what a call needs kernels for: records and Errors describe it
#include "runtime/attention/offline/purpose.h"

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/options.h"
#include "runtime/machine/replace.h"

namespace attune::runtime {
void record_purpose(const Purpose* purpose) {
  const std::string& path = options().record;
  if (path.empty() || !purpose || purpose->recorded_.exchange(true)) return;
  const std::string why = append_file(path, json_line(purpose->describe()) + "\n");
  if (!why.empty())
    throw Error("record-unwritable", "what was compiled cannot be recorded", {.name = "ATTUNE_RECORD " + path}, why,
                "name a file that can be written, or unset ATTUNE_RECORD");
}

void refuse_to_compile(const Purpose* purpose) {
  const std::string problem = "a kernel is in no bundle, and compiling is off";
  if (!purpose)
    throw Error("kernel-missing", problem, {}, "the call that needs it is not known",
                "load a bundle that has it, or let attune compile: ATTUNE_JIT=on");
  const Request request = purpose->describe();
  std::string mod;
  for (const auto& [name, text] : request.mod.named())
    mod += fmt::format("{}{} {}", mod.empty() ? "" : "\n", name, text);
  throw Error("kernel-missing", problem, {},
              fmt::format("{}\n{}", mod.empty() ? "plain attention" : mod, in_words(request)),
              "build it and load its bundle, or let attune compile: ATTUNE_JIT=on\n" +
                  compile_command(request, "kernels.attune"));
}

}  // namespace attune::runtime
