// runtime/cuda/kernels.cpp — kernels in memory: each compiled once for its Mod and tile, and loaded once a device
#include "runtime/cuda/kernels.h"

#include <atomic>

#include <attune/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/headers.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/single.h"

namespace attune::runtime::cuda {
namespace {

std::atomic<std::size_t> compiled_so_far{0};

/// What NVRTC made, by all that it was given.
std::shared_ptr<const Binary> binary_of(const codegen::Source& source) {
  static Single<std::string, Binary>& made = *new Single<std::string, Binary>;
  if (!nvrtc())
    throw Error("no-compiler", "there is no NVRTC, which compiles kernels for the GPU", {}, nvrtc().refusal,
                "install it: libnvrtc of CUDA 12 or 13");
  const std::string key = fmt::format("{}\n{}\n{}\n{}", fmt::join(source.options, " "), source.symbol, source.text,
                                      codegen::headers_digest());
  return made.get(key, [&] {
    ++compiled_so_far;
    return std::make_shared<const Binary>(compile(source));
  });
}

Kernel load(const Binary& binary, int device, int shared_bytes) {
  const Driver& d = driver();
  cu::Library library = nullptr;
  const cu::Result result = d.cuLibraryLoadData.raw(&library, binary.cubin.data(), nullptr, nullptr, 0, nullptr,
                                                    nullptr, 0);
  if (result == cu::Result::invalid_image || result == cu::Result::no_binary_for_gpu ||
      result == cu::Result::unsupported_ptx_version)
    throw Error("driver-old", "the driver does not take what NVRTC compiled", {},
                fmt::format("the driver is of CUDA {}.{}, and NVRTC {}.{} is newer", d.version / 1000,
                            d.version % 1000 / 10, nvrtc().major, nvrtc().minor),
                "install a newer driver, or an older NVRTC");
  if (result != cu::Result::success) refuse(result, d.cuLibraryLoadData.name);
  // Never unloaded: kernels may run for as long as the process does.
  Kernel kernel{.registers = binary.registers, .spilled = binary.spilled};
  d.cuLibraryGetKernel(&kernel.handle, library, binary.symbol.c_str());
  cu::Device of = 0;
  d.cuDeviceGet(&of, device);
  d.cuKernelSetAttribute(cu::KernelAttribute::dynamic_shared, shared_bytes, kernel.handle, of);
  // Loading is lazy else, and would happen at the first launch.
  cu::Function loaded = nullptr;
  d.cuKernelGetFunction(&loaded, kernel.handle);
  return kernel;
}

/// Why a binary is worse than what the plan was made for, or empty.
std::string flaw(const Binary& binary) {
  if (binary.spilled > 0) return fmt::format("spills {} bytes of registers", binary.spilled);
  if (!binary.warnings.empty()) return binary.warnings[0];
  return {};
}

ForwardKernel made(const ForwardKey& key, const Compiled& compiled) {
  const compiler::Mod& mod = compiled.traced.mod;
  const codegen::ForwardFacts facts = codegen::forward_facts(mod, compiled.cover, key.spec.scale_positive);
  const codegen::ForwardChoices all = codegen::choose(key.spec, facts);
  ForwardKernel out;
  if (!all.story.empty()) out.story.push_back(all.story);
  for (const codegen::ForwardChoice& choice : all.choices) {
    const auto binary = binary_of(codegen::forward_source(mod, compiled.cover, choice.plan, key.spec.arch));
    const std::string wrong = flaw(*binary);
    if (!wrong.empty() && &choice != &all.choices.back()) {
      out.story.push_back(
          fmt::format("not {} with {} x {}: {}", choice.plan.kernel, choice.plan.m, choice.plan.n, wrong));
      continue;
    }
    out.kernel = load(*binary, key.device, choice.shared_bytes);
    out.choice = choice;
    break;
  }
  if (facts.listed)
    out.cover = load(*binary_of(codegen::cover_source(mod, compiled.cover, key.spec.arch)), key.device, 0);
  return out;
}

}  // namespace

std::size_t compiled_kernels() { return compiled_so_far; }

void Kernel::launch(const unsigned (&grid)[3], int threads, int shared_bytes, cu::Stream stream,
                    std::span<void*> arguments) const {
  const cu::LaunchConfig config{.grid = {grid[0], grid[1], grid[2]},
                                .block = {static_cast<unsigned>(threads), 1, 1},
                                .shared_bytes = static_cast<unsigned>(shared_bytes),
                                .stream = stream};
  // The driver takes a kernel of a library where it takes a function.
  driver().cuLaunchKernelEx(&config, reinterpret_cast<cu::Function>(handle), arguments.data(), nullptr);
}

std::shared_ptr<const ForwardKernel> forward_kernel(const ForwardKey& key, const Compiled& compiled,
                                                    cu::Stream stream) {
  static Single<ForwardKey, ForwardKernel>& kept = *new Single<ForwardKey, ForwardKernel>;
  if (auto found = kept.find(key)) return found;
  if (capturing(stream))
    throw Error("stream-capture", "a kernel would be loaded while a graph is captured", {},
                "this is the first call of its kind on this device", "call Attention::prepare before the capture");
  return kept.get(key, [&] { return std::make_shared<const ForwardKernel>(made(key, compiled)); });
}

}  // namespace attune::runtime::cuda
