// runtime/attention/tools.h — Attention::run for tools, with its stages timed and its kernels chosen or shown
#pragma once

#include <vector>

#include <attune/attention.h>

#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/engine.h"

namespace attune::runtime {

void run(const Attention& attention, const What& asked, const Resources& with, Line at, Stages* stages = nullptr);

/// Calls on a device. With no `preference` the kernel is chosen as Attention::run chooses it.
void run(const Attention& attention, const What& asked, const codegen::Preference* preference,
         const Resources& with = {});
/// Bytes of working memory of such a call.
std::size_t workspace(const Attention& attention, const What& asked, const codegen::Preference* preference);
Cover cover(const Attention& attention, const Forward& call, const codegen::Preference* preference);
/// The story of each kernel that visits pairs, in the order of launches; a forward has one.
std::vector<KernelStory> stories(const Attention& attention, const What& asked,
                                 const codegen::Preference* preference = nullptr);
codegen::CallSpec call_spec(const Attention& attention, const What& asked);

}  // namespace attune::runtime
