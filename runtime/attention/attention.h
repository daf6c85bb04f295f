// runtime/attention/attention.h — what Attention::run does, with its stages timed and its kernels chosen or shown
#pragma once

#include <attune/attention.h>

#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cuda/engine.h"

namespace attune::runtime {

void run(const Attention& attention, const Forward& call, const Resources& with, Line at,
         cpu::Stages* stages = nullptr);
void run(const Attention& attention, const Backward& call, const Resources& with, Line at,
         cpu::Stages* stages = nullptr);

/// Calls on a device. With no `preference` the kernel is chosen as Attention::run chooses it.
void run(const Attention& attention, const Forward& call, const codegen::Preference* preference,
         const Resources& with = {});
/// Bytes that such a call works in.
std::size_t workspace(const Attention& attention, const Forward& call, const codegen::Preference* preference);
void run(const Attention& attention, const Backward& call, const codegen::Preference* preference);
Cover cover(const Attention& attention, const Forward& call, const codegen::Preference* preference);
cuda::KernelStory story(const Attention& attention, const Forward& call,
                        const codegen::Preference* preference = nullptr);
std::vector<cuda::KernelStory> stories(const Attention& attention, const Backward& call,
                                       const codegen::Preference* preference = nullptr);
cuda::KernelWants wants(const Attention& attention, const Forward& call);

}  // namespace attune::runtime
