// runtime/attention/tools.cpp — calls on a device for tools: with a chosen kernel, its story, its memory
#include "runtime/attention/tools.h"

#include <attune/error.h>

#include "runtime/attention/bind.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {
namespace {

/// A checked call on a device, while callbacks wait.
struct OnDevice {
  const Recording recording;
  const Checked checked;

  OnDevice(const Attention& attention, const What& asked) : checked(attention, asked) {
    if (checked.target() != Target::cuda) throw Bug("the call is on the host, and only devices have such kernels");
  }
  const Call& call() const { return checked.call(); }
};

}  // namespace

void run(const Attention& attention, const What& asked, const codegen::Preference* preference, const Resources& with) {
  const OnDevice on(attention, asked);
  cuda::engine.run(
      on.call(),
      {.workspace = with.workspace, .stream = with.stream, .preference = preference, .cover = with.cover.lists()});
}

std::size_t workspace(const Attention& attention, const What& asked, const codegen::Preference* preference) {
  return cuda::engine.workspace(OnDevice(attention, asked).call(), {.preference = preference});
}

Cover cover(const Attention& attention, const Forward& call, const codegen::Preference* preference) {
  return Cover(cuda::cover(OnDevice(attention, call).call(), {.preference = preference}));
}

std::vector<KernelStory> stories(const Attention& attention, const What& asked, const codegen::Preference* preference) {
  return cuda::engine.story(OnDevice(attention, asked).call(), {.preference = preference});
}

cuda::KernelWants wants(const Attention& attention, const Forward& call) {
  return cuda::forward_wants(OnDevice(attention, call).call());
}

}  // namespace attune::runtime
