// runtime/platform/platform.cpp — the driver and the compiler that the engine uses: NVIDIA's, unless they were replaced
#include "runtime/platform/platform.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include <fmt/format.h>

#include "runtime/machine/mutex.h"
#include "runtime/machine/options.h"
#include "runtime/machine/threads.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime::cuda {
namespace {

std::atomic<const Platform*> used{nullptr};
thread_local const Platform* of_thread = nullptr;
Mutex remembering;
bool threads_differ = false;  ///< true once a thread had a platform of its own

}  // namespace

const Platform& nvidia() {
  static constinit Once<const Platform> all;
  return all.get([] {
    return Platform{.driver = &find_nvidia_driver,
                    .generation = [] { return std::uint64_t{0}; },
                    .kind = "cubin",
                    .compiler =
                        [] {
                          return nvrtc() ? fmt::format("{} {}.{}", nvrtc().build, nvrtc().major, nvrtc().minor)
                                         : std::string();
                        },
                    .refusal = [] { return nvrtc().refusal; },
                    .further = [] { return std::string(); },
                    .compile = [](const codegen::Source& source, Ptx ptx) { return compile(source, ptx); },
                    .splices = true};
  });
}

const Platform& platform() {
  if (of_thread) return *of_thread;
  if (const Platform* const other = used) return *other;
  static constinit Once<const Platform* const> usual;
  return *usual.get([] { return options().emulated.empty() ? &nvidia() : &emulated_platform(options().emulated); });
}

void use(const Platform& other) {
  used = &other;
  driver_in_use = nullptr;
}

OnPlatform::OnPlatform(const Platform* other) : before_(of_thread) {
  if (!other) return;
  of_thread = other;
  const std::lock_guard lock(remembering);
  threads_differ = true;
  driver_in_use = nullptr;
}
OnPlatform::~OnPlatform() { of_thread = before_; }

const Platform* platform_of_thread() { return of_thread; }

void remember(const Driver& driver) {
  const std::lock_guard lock(remembering);
  if (!threads_differ) driver_in_use.store(&driver, std::memory_order_release);
}

void at_once(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  on_threads(std::min(count, static_cast<std::size_t>(usable_cpus())), [&, own = platform_of_thread()] {
    const OnPlatform same(own);
    const Recording recording;
    for (std::size_t i; (i = next++) < count;) work(i);
  });
}

}  // namespace attune::runtime::cuda
