// tools/device_call.cpp — options that describe the GPU call to choose a kernel for, with or without a GPU
#include "tools/device_call.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <vector>

#include "codegen/occupancy.h"
#include "runtime/attention/offline/call_spec.h"
#include "runtime/attention/offline/shape.h"

namespace attune::tools {

void DeviceCall::add_to(CLI::App& verb, bool beside_picture) {
  const std::string group = "The call";
  add_types_to(verb, group);
  add_sizes_to(verb, group, beside_picture);
  add_cache_to(verb, group, beside_picture);
  verb.add_option("--arch", arch, "compute capability times ten")->type_name("N")->group(group);
  verb.add_option("--kernel", kernel, "this kernel, with these tile parameters")
      ->type_name("NAME[:m=N,n=N,...]")
      ->group(group);
  verb.add_flag("--max", max, "with the largest score of each row")->group(group);
  verb.add_flag("--packed", as_packed, "for packed sequences")->group(group);
}

void DeviceCall::check() const {
  CallOptions::check();
  if (as_packed && (decode || q_offset))
    throw Error("bad-usage", "the command line cannot be read", {.name = "--packed"},
                "packed sequences begin at position 0, and have no cache", "leave one of them out");
  // The choice of a kernel refuses architectures that are too old for any.
  if (arch && *arch >= codegen::multiprocessors().front().arch && !runtime::is_known_arch(*arch)) {
    std::vector<int> known;
    for (const codegen::Multiprocessor& one : codegen::multiprocessors()) known.push_back(one.arch);
    throw Error("unknown-target", fmt::format("there is no GPU of compute capability {}.{}", *arch / 10, *arch % 10),
                {.name = "--arch"}, fmt::format("kernels are compiled for {}", fmt::join(known, ", ")),
                "write one of these");
  }
}

codegen::CallSpec DeviceCall::spec(const compiler::LoweredMod& lowered, int otherwise) const {
  CallOptions of = *this;
  if (as_packed) {
    of.lengths.assign(static_cast<std::size_t>(batch), seq);
    of.kv_lengths.assign(static_cast<std::size_t>(batch), of_kv_seq());
  }
  Data data = Data::described();
  const ForwardTensors tensors(of, data);
  Forward call = tensors.call();
  Owned maxima;
  if (max) {
    maxima = data.zeros(DType::f32,
                        {tensors.lse.tensor.shape.begin(), tensors.lse.tensor.shape.begin() + tensors.lse.tensor.rank});
    call.max = maxima.tensor;
  }
  std::vector<Tensor> captures;
  for (const Tensor& t : lowered.slots.captures)
    captures.push_back(data.zeros(t.dtype, {t.shape.begin(), t.shape.begin() + t.rank}).tensor);
  call.captures = captures;
  codegen::CallSpec out = runtime::call_spec(lowered, call, arch.value_or(otherwise), exact.asked());
  if (kernel) out.preference = {codegen::variant(*kernel), true, ""};
  return out;
}

}  // namespace attune::tools
