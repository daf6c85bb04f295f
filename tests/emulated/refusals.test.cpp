// tests/emulated/refusals.test.cpp — Target::emulated: what it computes, and what it refuses in which words
#include <attune/attune.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/platform/emulated/command.h"
#include "runtime/platform/emulated/files.h"
#include "runtime/platform/emulated/grid.h"
#include "runtime/platform/nvidia/driver.h"
#include "tests/child.h"
#include "tests/comes_true.h"
#include "tests/emulated/gpu.h"
#include "tests/golden.h"
#include "tests/refusal.h"

namespace attune::tests {
namespace {

constexpr Line somewhere{"mine.cpp", 12};

/// Tensors of a small call on the host.
struct Small {
  static constexpr std::int64_t rows = 70, width = 64;
  Array<float> q = made(1), k = made(2), v = made(3), o = Device::cpu().array<float>({1, 2, rows, width});

  static Array<float> made(int by) {
    auto out = Device::cpu().array<float>({1, 2, rows, width});
    for (int i = 0; float& x : out.values()) x = static_cast<float>((i++ * (2 * by + 1)) % 17) / 8 - 1;
    return out;
  }
  void run(Target target) {
    Attention{.mask = [](At at) { return at.kv <= at.q; }, .target = target}.run({.q = q, .k = k, .v = v, .o = o},
                                                                                 somewhere);
  }
};

float apart(const Array<float>& a, const Array<float>& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.values().size(); ++i) most = std::max(most, std::abs(a.values()[i] - b.values()[i]));
  return most;
}

/// The message of the Error that `call` throws in a process of its own.
template <class F>
std::string refusal_in_child(F call) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const int status = in_child([&] {
    const std::string said = refusal(call).what();
    return write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1;
  });
  close(ends[1]);
  CHECK(status == 0);
  std::string said(4096, ' ');
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read(ends[0], said.data(), said.size()))));
  close(ends[0]);
  return said;
}

/// A message whose first line names a file in this process's folder, without the folder's and the kernel's numbers.
std::string in_own_folder(const std::string& message) {
  const std::string one = std::regex_replace(message, std::regex("/\\S*/(\\D+)\\d*(?:-\\d+)?(\\S*)"), "/tmp/own/$1$2",
                                             std::regex_constants::format_first_only);
  return std::regex_replace(one, std::regex("  +\\["), "  [");
}

void limit(decltype(RLIMIT_AS) which, std::size_t to) {
  const rlimit both{to, to};
  if (setrlimit(which, &both) != 0) throw Bug("a limit cannot be set");
}

/// True in a process that may mount, and has mounted this folder so that nothing in it can be executed.
bool mounted_noexec(const std::string& folder) {
  return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
         mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
         mount(nullptr, folder.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_NOEXEC, nullptr) == 0;
}

}  // namespace

TEST_CASE("Target::emulated computes calls on the host, several at a time, and leaves Device::cuda alone",
          "[emulated]") {
  if (skipped_without_compiler()) return;
  const int devices = runtime::cuda::device_count();
  Small exactly, ampere, hopper;
  exactly.run(Target::oracle);
  std::thread other([&] { ampere.run(Target::emulated("sm_80:seed=3:sms=2")); });
  hopper.run(Target::emulated("sm_90a"));
  other.join();
  CHECK(apart(exactly.o, ampere.o) < 1e-5f);
  CHECK(apart(exactly.o, hopper.o) < 1e-5f);
  CHECK(runtime::cuda::device_count() == devices);
  CHECK(Target::emulated("sm_90a") == Target::emulated("sm_90a:seed=1"));
  CHECK_FALSE(Target::emulated("sm_90a") == Target::emulated("sm_80"));
}

TEST_CASE("an emulated GPU computes gradients on the host, in a workspace of the host", "[emulated]") {
  if (skipped_without_compiler()) return;
  Small in, exactly, here;
  for (Small* one : {&exactly, &here}) {
    const Attention attention{.score = [](Float s, At at) { return s - 0.1f * f32(at.q - at.kv); },
                              .target = one == &here ? Target::emulated("sm_90a") : Target::oracle};
    const Backward call{.q = in.q, .k = in.k, .v = in.v, .grad_o = in.q, .dq = one->q, .dk = one->k, .dv = one->v};
    const std::size_t bytes = attention.workspace(call);
    auto memory = Device::cpu().array<std::uint8_t>({static_cast<std::int64_t>(bytes) + 1});
    attention.backward(call, {.workspace = std::as_writable_bytes(memory.values()).first(bytes)});
  }
  CHECK(apart(exactly.q, here.q) < 1e-4f);
  CHECK(apart(exactly.k, here.k) < 1e-4f);
  CHECK(apart(exactly.v, here.v) < 1e-4f);
}

TEST_CASE("targets that are not emulated are refused", "[emulated]") {
  const auto message = [](const char* gpu) {
    return std::string(refusal([&] { Target::emulated(gpu, somewhere); }).what());
  };
  golden_error("bad-target.architecture", message("sm_100"));
  golden_error("bad-target.number", message("sm_80:seed=many"));
  golden_error("bad-target.sms", message("sm_80:sms=0"));
  golden_error("bad-target.setting", message("sm_90a:clock=2"));
  golden_error("bad-target", refusal([] { runtime::emulated::gpu_of("emulated"); }).what());
}

TEST_CASE("an emulated GPU refuses arrays of a GPU", "[emulated]") {
  Small small;
  const Attention attention{.target = Target::emulated("sm_90a")};
  const auto there = [&](const Array<float>& from) {
    Tensor out = from;
    out.device = Device::cuda();
    return out;
  };
  const Forward call{.q = there(small.q), .k = there(small.k), .v = there(small.v), .o = there(small.o)};
  golden_error("engine-device.emulated", refusal([&] { attention.run(call, somewhere); }).what());
}

TEST_CASE("what stops an emulated kernel is told in words", "[emulated]") {
  golden_error("emulated-processor", refusal([] { runtime::emulated::refuse_processor(); }).what());
  golden_error("emulated-folder", refusal_in_child([] {
                 setenv("TMPDIR", "/dev/null", 1);
                 const runtime::emulated::Folder made;
               }));
  golden_error("emulated-folder.none", refusal_in_child([] {
                 setenv("TMPDIR", "/proc", 1);
                 const runtime::emulated::Folder made;
               }));
  const runtime::emulated::Folder own;
  const std::string full = refusal_in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    limit(RLIMIT_FSIZE, 100);
    runtime::emulated::write_below(own.path(), "large", std::string(200, 'x'));
  });
  golden_error("emulated-folder.full", in_own_folder(full));
  golden_error("emulated-limit.files", refusal_in_child([] {
                 limit(RLIMIT_NOFILE, 0);
                 runtime::emulated::ran("true");
               }));
  golden_error("emulated-limit.processes",
               refusal([] { runtime::emulated::refuse("no command can be started", EAGAIN); }).what());
  golden_error("emulated-limit.stacks", refusal_in_child([] {
                 limit(RLIMIT_AS, std::size_t{64} << 30);
                 for (runtime::emulated::Stacks stacks;;) stacks.take();
               }));
  if (skipped_without_compiler()) return;
  runtime::emulated::set_patches({{"codegen/cuda/forward_sm80/forward_sm80.cuh",
                                   "put_in_lines<Tile>(of);\n  __syncwarp();", "put_in_lines<Tile>(of);"}});
  Small small;
  const Attention attention{.target = Target::emulated("sm_80:seed=100")};
  const Forward call{.q = small.q, .k = small.k, .v = small.v, .o = small.o};
  const std::string found = refusal([&] { attention.run(call, somewhere); }).what();
  runtime::emulated::set_patches({});
  // Threads run in the order of a seed; lines change with the kernel.
  golden_error("emulated-kernel", std::regex_replace(found, std::regex("[0-9]+"), "N"));
}

TEST_CASE("kernels that may not be executed in TMPDIR are refused in words", "[emulated]") {
  if (skipped_without_compiler()) return;
  const std::string folder = runtime::emulated::folder().string();
  if (in_child([&] { return mounted_noexec(folder) ? 0 : 1; }) != 0) {
    WARN("[skip] this process may not mount");
    return;
  }
  golden_error("emulated-folder.noexec", in_own_folder(refusal_in_child([&] {
                 mounted_noexec(folder);
                 Small small;
                 small.run(Target::emulated("sm_80"));
               })));
}

TEST_CASE("commands end while children that were forked meanwhile live on", "[emulated]") {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  constexpr int rounds = 40;
  std::atomic<int> ended = 0, right = 0;
  std::array<std::thread, 3> threads;
  for (std::thread& one : threads)
    one = std::thread([&] {
      for (int i = 0; i < rounds; ++i) right += runtime::emulated::ran("true").status == 0;
      ++ended;
    });
  std::vector<pid_t> children;
  const auto have_ended = [&] { return ended == static_cast<int>(threads.size()); };
  while (!have_ended() && children.size() < 40) {
    children.push_back(fork_child());
    if (children.back() == 0) {
      char none = 0;
      close(ends[1]);
      _exit(read(ends[0], &none, 1) == 0 ? 0 : 1);
    }
  }
  CHECK(comes_true(have_ended));
  close(ends[1]);
  for (std::thread& one : threads) one.join();
  for (const pid_t child : children) CHECK(status_of(child) == 0);
  close(ends[0]);
  CHECK(right == rounds * static_cast<int>(threads.size()));
}

TEST_CASE("commands have their status and output in programs that ignore SIGCHLD or wait for all children",
          "[emulated]") {
  const auto as_said = [] {
    const auto one = runtime::emulated::ran("echo first; echo second; exit 3");
    const auto none = runtime::emulated::ran("kill -9 $$");
    return one.status == 3 && one.said == "first\nsecond\n" && none.status == -1 ? 0 : 1;
  };
  CHECK(as_said() == 0);
  CHECK(in_child([&] {
          std::signal(SIGCHLD, SIG_IGN);
          return as_said();
        }) == 0);
  CHECK(in_child([&] {
          std::signal(SIGCHLD, [](int) {
            while (waitpid(-1, nullptr, WNOHANG) > 0) {
            }
          });
          return as_said();
        }) == 0);
}

TEST_CASE("stacks of many threads take few mappings, guard pages end the first ones, and no mapping is an Error",
          "[emulated]") {
  const auto mappings = [] {
    std::ifstream file("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  runtime::emulated::Stacks stacks;
  const auto before = mappings();
  std::byte* const first = stacks.take();
  std::fill_n(first, runtime::emulated::Stacks::bytes, std::byte{1});
  CHECK(in_child([&] {
          std::signal(SIGSEGV, [](int) { _exit(77); });
          first[-1] = std::byte{1};
          return 0;
        }) == 77);
  CHECK(in_child([] {
          constexpr std::size_t page = 4096, pages = std::size_t{1} << 20;
          auto* const all = static_cast<std::byte*>(
              mmap(nullptr, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
          std::size_t i = 0;
          while (i < pages && mprotect(all + i * page, page, PROT_READ) == 0) i += 2;
          runtime::emulated::Stacks none;
          return i >= pages || refusal([&] { none.take(); }).code == "emulated-limit" ? 0 : 1;
        }) == 0);
  // As many as 256 multiprocessors run.
  for (int i = 1; i < 256 * 512; ++i) stacks.take();
  CHECK(mappings() - before < 45000);
}

}  // namespace attune::tests
