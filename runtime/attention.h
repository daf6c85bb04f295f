// runtime/attention.h — a call with a look inside: what Attention::run does, and how long its stages took
#pragma once

#include <attune/attention.h>

#include "runtime/cpu/engine.h"

namespace attune::runtime {

void run(const Attention& attention, const Forward& call, const Resources& with, Line at,
         cpu::Stages* stages = nullptr);
void run(const Attention& attention, const Backward& call, const Resources& with, Line at,
         cpu::Stages* stages = nullptr);

/// Of a call on a device: which kernel takes it, and why not others.
std::string story(const Attention& attention, const Forward& call);

}  // namespace attune::runtime
