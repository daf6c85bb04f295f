// playground/say.h — an attention as a command, a program of C++ and one of Python
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compiler/trace.h"
#include "playground/fill.h"
#include "runtime/attention/offline/written.h"
#include "runtime/engines/picture/draw.h"

namespace attune::playground {

struct Said {
  std::string command, cpp, python;
};

/// What says the same as `written`, whose Mod is `mod`. `look`: options of the command that say how a picture looks.
Said say(const runtime::Written& written, const compiler::BoundMod& mod, const std::vector<std::string>& look = {});

/// The options of attune plot that show a picture of this view, with captured tensors filled so.
std::vector<std::string> look_of(const runtime::View& view, const std::map<std::string, Fill, std::less<>>& fills);

}  // namespace attune::playground
