// runtime/attention.h — calls as Attention::run makes them, with a view inside: stage times, kernels, covers
#pragma once

#include <attune/attention.h>

#include "runtime/cpu/engine.h"
#include "runtime/cuda/engine.h"

namespace attune::runtime {

void run(const Attention& attention, const Forward& call, const Resources& with, Line at,
         cpu::Stages* stages = nullptr);
void run(const Attention& attention, const Backward& call, const Resources& with, Line at,
         cpu::Stages* stages = nullptr);

/// For calls on a device. With a null `preference` the kernel is chosen as in Attention::run.
void run(const Attention& attention, const Forward& call, const codegen::Preference* preference,
         const Cover& cover = {});
Cover cover(const Attention& attention, const Forward& call, const codegen::Preference* preference);
cuda::ForwardStory story(const Attention& attention, const Forward& call,
                         const codegen::Preference* preference = nullptr);
cuda::ForwardWants wants(const Attention& attention, const Forward& call);

}  // namespace attune::runtime
