// runtime/attention.h — a call with a look inside: what Attention::run does, and how long its stages took
#pragma once

#include <attune/attention.h>

#include "runtime/cpu/engine.h"
#include "runtime/cuda/engine.h"

namespace attune::runtime {

void run(const Attention& attention, const Forward& call, const Resources& with, Line at,
         cpu::Stages* stages = nullptr);
void run(const Attention& attention, const Backward& call, const Resources& with, Line at,
         cpu::Stages* stages = nullptr);

/// Of calls on a device. `preference` may be null: then as Attention::run chooses.
void run(const Attention& attention, const Forward& call, const codegen::Preference* preference,
         const Cover& cover = {});
Cover cover(const Attention& attention, const Forward& call, const codegen::Preference* preference);
cuda::ForwardStory story(const Attention& attention, const Forward& call,
                         const codegen::Preference* preference = nullptr);
cuda::ForwardWants wants(const Attention& attention, const Forward& call);

}  // namespace attune::runtime
