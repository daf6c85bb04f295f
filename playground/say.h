// playground/say.h — an attention as a command, a program of C++ and one of Python
#pragma once

#include <string>
#include <vector>

#include "compiler/trace.h"
#include "runtime/attention/offline/written.h"

namespace attune::playground {

struct Said {
  std::string command, cpp, python;
};

/// What says the same as `written`, whose Mod is `mod`. `look`: options of the command that say how a picture looks.
Said say(const runtime::Written& written, const compiler::BoundMod& mod, const std::vector<std::string>& look = {});

}  // namespace attune::playground
