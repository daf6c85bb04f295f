// runtime/platform/emulated/fiber.cpp — a separate stack for each thread of an emulated kernel, and switches between
// them
#include "runtime/platform/emulated/grid.h"

#include <cerrno>
#include <cstdint>

#include <sys/mman.h>

#include <attune/error.h>

#include "runtime/platform/emulated/command.h"

namespace attune::runtime::emulated {

#if defined(__x86_64__)

// Saves and restores the callee-saved registers; a switch takes about two nanoseconds.
asm(R"(
.text
.p2align 4
.type attune_switch_fibers, @function
attune_switch_fibers:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size attune_switch_fibers, .-attune_switch_fibers
)");
extern "C" void attune_switch_fibers(void** from, void* to);

void switch_fibers(Fiber& from, const Fiber& to) { attune_switch_fibers(&from.at, to.at); }

Fiber new_fiber(std::byte* stack, void (*body)()) {
  constexpr std::size_t registers = 6;
  auto* top = reinterpret_cast<std::uintptr_t*>(stack + Stacks::bytes);
  // At its entry a function has its return address right below a multiple of 16.
  *--top = 0;
  *--top = reinterpret_cast<std::uintptr_t>(body);
  for (std::size_t i = 0; i < registers; ++i) *--top = 0;
  return {top};
}

#else

void switch_fibers(Fiber&, const Fiber&) { throw Bug("fibers switch on x86-64 alone"); }
Fiber new_fiber(std::byte*, void (*)()) { refuse_processor(); }

#endif

void refuse_processor() {
  throw Error("emulated-processor", "GPUs are not emulated on this processor yet", {},
              "threads of a kernel switch by code that is written for x86-64", "run it on such a machine");
}

namespace {

constexpr std::size_t guard = 4096, stacks_of_slab = 32;
/// A guard page takes the process two mappings, of the 65530 that it may have (vm.max_map_count). Others need some,
/// too.
constexpr std::size_t most_guarded = 16384;

}  // namespace

void Stacks::add_slab() {
  constexpr std::size_t size = stacks_of_slab * (guard + bytes);
  void* const made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) refuse_stacks(errno);
  auto* const slab = static_cast<std::byte*>(made);
  // The stacks of later slabs share a guard page.
  const std::size_t guards = stacks_of_slab * (slabs_.size() + 1) <= most_guarded ? stacks_of_slab : 1;
  for (std::size_t i = 0; i < guards; ++i)
    if (mprotect(slab + i * (guard + bytes), guard, PROT_NONE) != 0) {
      const int error = errno;
      munmap(slab, size);
      refuse_stacks(error);
    }
  slabs_.push_back(slab);
  for (std::size_t i = 0; i < stacks_of_slab; ++i) free_.push_back(slab + i * (guard + bytes) + guard);
}

std::byte* Stacks::take() {
  if (free_.empty()) add_slab();
  std::byte* const out = free_.back();
  free_.pop_back();
  return out;
}

Stacks::~Stacks() {
  for (std::byte* one : slabs_) munmap(one, stacks_of_slab * (guard + bytes));
}

}  // namespace attune::runtime::emulated
