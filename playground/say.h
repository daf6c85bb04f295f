// playground/say.h — an attention as a command, a C++ program and a Python program
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

/// The equivalents of `written`, whose Mod is `mod`. `look`: the command's options for the look of a picture.
Said say(const runtime::Written& written, const compiler::BoundMod& mod, const std::vector<std::string>& look = {});

/// The options of attune plot for a picture of this view, with captured tensors filled as given.
std::vector<std::string> look_of(const runtime::View& view, const std::map<std::string, Fill, std::less<>>& fills);

}  // namespace attune::playground
