// playground/say.h — an attention as a command, a program of C++ and one of Python
#pragma once

#include <string>

#include "compiler/trace.h"
#include "runtime/cover/tiles.h"
#include "runtime/offline/written.h"

namespace attune::playground {

struct Said {
  std::string command, cpp, python;
};

/// What says the same as `written`, whose Mod is `mod`: at these sizes, for the command.
Said say(const runtime::Written& written, const compiler::BoundMod& mod, const runtime::Extent& e);

}  // namespace attune::playground
