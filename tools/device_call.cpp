// tools/device_call.cpp — options that describe the GPU call to choose a kernel for, with or without a GPU
#include "tools/device_call.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <vector>

#include "codegen/occupancy.h"
#include "compiler/lower.h"
#include "runtime/attention/offline/shape.h"

namespace attune::tools {

void DeviceCall::add_to(CLI::App& verb, bool beside_picture) {
  const std::string group = "The call";
  add_call_type(verb, dtype, "bf16 if left out; ")->group(group);
  verb.add_option("--d", d, "width of a head; 128 if left out")->type_name("N")->group(group);
  verb.add_option("--dv", dv, "width of the values; as --d if left out")->type_name("N")->group(group);
  verb.add_option(beside_picture ? "--seq" : "--seq,--q-len", seq, "queries; 8192 if left out")
      ->type_name("N")
      ->group(group);
  verb.add_option(beside_picture ? "--kv-seq" : "--kv-seq,--kv-len", kv_seq, "keys; as many as queries if left out")
      ->type_name("N")
      ->group(group);
  verb.add_option("--arch", arch, "compute capability times ten")->type_name("N")->group(group);
  verb.add_option("--kernel", kernel, "this kernel, with these members of its tile changed")
      ->type_name("NAME[:m=N,n=N,...]")
      ->group(group);
  exact.add_to(verb).group(group);
  verb.add_flag("--max", max, "with the largest score of each row")->group(group);
  verb.add_flag("--packed", packed, "for packed sequences")->group(group);
}

void DeviceCall::check() const {
  exact.check();
  call_type(dtype);
  for (const auto& [option, value] :
       {std::pair{"--d", d}, {"--dv", dv.value_or(1)}, {"--seq", seq}, {"--kv-seq", kv_seq.value_or(1)}})
    require_size(option, value, 1, compiler::max_length);
  // Those too old for kernels are refused by the choice of one.
  if (arch && *arch >= codegen::multiprocessors().front().arch && !runtime::is_known_arch(*arch)) {
    std::vector<int> known;
    for (const codegen::Multiprocessor& one : codegen::multiprocessors()) known.push_back(one.arch);
    throw Error("unknown-target", fmt::format("there is no GPU of compute capability {}.{}", *arch / 10, *arch % 10),
                {.name = "--arch"}, fmt::format("there are {}", fmt::join(known, ", ")), "write one of these");
  }
}

codegen::KernelSpec DeviceCall::spec(int otherwise, std::int64_t group) const {
  // Tensors are contiguous: their widths decide how rows may be copied.
  return runtime::spec_of({.dtype = call_type(dtype),
                           .d = d,
                           .dv = dv,
                           .max = max,
                           .packed = packed,
                           .heads = codegen::heads_to_share(seq, group),
                           .decode = codegen::is_decode(seq, group),
                           .exact = exact.asked()},
                          arch.value_or(otherwise));
}

std::optional<codegen::Preference> DeviceCall::preference() const {
  if (!kernel) return std::nullopt;
  return codegen::Preference{codegen::variant(*kernel), true, ""};
}

}  // namespace attune::tools
