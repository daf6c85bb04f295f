// runtime/machine/purpose.cpp — what a kernel is needed for, in words: records and Errors quote it
#include "runtime/machine/purpose.h"

#include <attune/error.h>

#include "runtime/machine/options.h"
#include "runtime/machine/replace.h"

namespace attune::runtime {

void record_purpose(const Purpose* purpose) {
  const std::string& path = options().record;
  if (path.empty() || !purpose || purpose->recorded_.exchange(true)) return;
  const std::string why = append_file(path, purpose->describe().record + "\n");
  if (!why.empty())
    throw Error("record-unwritable", "compiled kernels cannot be recorded", {.name = "ATTUNE_RECORD " + path}, why,
                "name a file that can be written, or unset ATTUNE_RECORD");
}

void refuse_to_compile(const Purpose* purpose) {
  const std::string problem = "a kernel is in no bundle, and compiling is off";
  if (!purpose)
    throw Error("kernel-missing", problem, {}, "the call that needs it is not known",
                "load a bundle that has it, or let attune compile: ATTUNE_JIT=on");
  const Purpose::Text text = purpose->describe();
  throw Error("kernel-missing", problem, {}, text.words,
              "build it and load its bundle, or let attune compile: ATTUNE_JIT=on\n" + text.command);
}

}  // namespace attune::runtime
