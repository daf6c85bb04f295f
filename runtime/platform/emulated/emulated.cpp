// runtime/platform/emulated/emulated.cpp — GPUs that are emulated on the host and replace this machine's GPUs
#include "runtime/platform/emulated/emulated.h"

#include <charconv>
#include <deque>
#include <mutex>

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/machine/mutex.h"
#include "runtime/platform/emulated/compiler.h"
#include "runtime/platform/emulated/driver.h"

namespace attune::runtime::emulated {
namespace {

std::uint64_t number_of_kind() {
  const Gpu& gpu = emulated_gpu().gpu;
  return static_cast<std::uint64_t>(gpu.arch) << 32 | static_cast<std::uint64_t>(gpu.sms);
}
cuda::Binary compiled(const codegen::Source& source, cuda::Ptx) { return compile(source); }

}  // namespace

OfGpu::OfGpu(const Gpu& of)
    : cuda::Platform{.driver = &find_driver,
                     .generation = &number_of_kind,
                     // Kernels are kept by the numbers of their devices: no GPU of this machine has these.
                     .first_device = of.arch,
                     .kind = "emulated",
                     .compiler = [] { return host_compiler().version; },
                     .refusal = [] { return host_compiler().refusal; },
                     .further = &further_input,
                     .compile = &compiled},
      gpu(of) {}

namespace {

/// Never destroyed: threads may still use an earlier one.
const OfGpu& kept(const Gpu& gpu) {
  static Mutex mutex;
  const std::lock_guard lock(mutex);
  static auto& all = *new std::deque<OfGpu>;
  return all.emplace_back(gpu);
}

}  // namespace

void emulate(const Gpu& gpu) { cuda::use(kept(gpu)); }

struct Here::On {
  OfGpu platform;
  cuda::OnPlatform on;

  explicit On(const Gpu& gpu) : platform(gpu), on(&platform) {}
};
Here::Here(const Gpu& gpu) : on_(std::make_unique<On>(gpu)) {}
Here::~Here() = default;

Gpu gpu_of(std::string_view name, const Place& where) {
  const auto refuse = [&](std::string_view part, const std::string& why) {
    const auto at = static_cast<std::size_t>(part.data() - name.data());
    throw Error(
        "bad-target", fmt::format("there is no target {}", name),
        {.name = where.name, .line = where.line, .text = std::string(name), .begin = at, .end = at + part.size()}, why,
        "write emulated:sm_80 or emulated:sm_90a, optionally followed by :seed=N and :sms=N");
  };
  Gpu out;
  std::size_t nth = 0;
  for (std::string_view rest = name;; ++nth) {
    const std::size_t end = rest.find(':');
    const std::string_view part = rest.substr(0, end);
    const auto number = [&](std::string_view key, auto& into) {
      if (!part.starts_with(key)) return false;
      const std::string_view digits = part.substr(key.size());
      const auto [last, error] = std::from_chars(digits.data(), digits.data() + digits.size(), into);
      if (error != std::errc() || last != digits.data() + digits.size()) refuse(part, "that is no whole number");
      return true;
    };
    if (nth == 1) {
      if (part != "sm_80" && part != "sm_90a") refuse(part, "sm_80 and sm_90a are emulated");
      out.arch = part == "sm_80" ? 80 : 90;
    } else if (nth > 1 && !number("seed=", out.seed) && !number("sms=", out.sms)) {
      refuse(part, "a target has a seed and a number of multiprocessors, sms, and nothing else");
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (nth < 1) refuse(name, "it does not say which architecture is emulated");
  if (out.sms < 1 || out.sms > 256) refuse(name, "a GPU has 1 to 256 multiprocessors here");
  return out;
}

}  // namespace attune::runtime::emulated

namespace attune::runtime::cuda {

const Platform& emulated_platform(const std::string& gpu) {
  return emulated::kept(emulated::gpu_of("emulated:" + gpu, {.name = "ATTUNE_EMULATED"}));
}

}  // namespace attune::runtime::cuda
