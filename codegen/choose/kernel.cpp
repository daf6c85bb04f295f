// codegen/choose/kernel.cpp — what is the same for every GPU kernel: the values of a tile's members, plans
#include "codegen/choose/kernel.h"

#include <algorithm>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/choose/card.h"
#include "codegen/choose/gpu_element.h"

namespace attune::codegen {

void refuse_gpu_element(DType type) {
  throw Bug(fmt::format("a GPU kernel was asked for elements of {}", name_of(type)));
}

std::string Member::why_not(int value) const {
  if (value >= least && value <= most && (value - least) % step == 0) return {};
  if (most - least == step) return fmt::format("{} is {} or {}", name, least, most);
  if (step == 1) return fmt::format("{} is {} to {}", name, least, most);
  return fmt::format("{} is a multiple of {}, from {} to {}", name, step, least, most);
}

std::string_view name_of(Way way) {
  switch (way) {
    case Way::forward: return "forward";
    case Way::backward: return "backward";
    case Way::queries: return "backward of q";
    case Way::keys: return "backward of k and v";
  }
  throw Bug("a kernel computes in no way that is known");
}

int most_shared(int arch) {
  if (arch == 80 || arch == 87) return 163 * 1024;
  return arch >= 90 && arch < 120 ? 227 * 1024 : 99 * 1024;
}

int most_shared_of(int blocks, int arch) {
  constexpr int of_cuda = 1024;  // of each block
  return blocks == 1 ? most_shared(arch) : multiprocessor(arch).shared_bytes / blocks / 128 * 128 - of_cuda;
}

KernelPlan plan_of(const KernelDescriptor& kernel, const KernelSpec& spec, const Variant& variant, int m, int n) {
  const int width_step = gpu_element(spec.dtype).width_step;
  return {.kernel = &kernel,
          .spec = spec,
          .tile = {.m = m,
                   .n = n,
                   .d = static_cast<int>(round_up(spec.d, width_step)),
                   .dv = static_cast<int>(round_up(spec.dv, width_step)),
                   .heads = std::min(spec.sharing.heads, kernel.most_heads)},
          .variant = variant};
}

CoverForm cover_form(Way way) {
  switch (way) {
    case Way::forward:
    case Way::queries: return CoverForm::of_queries;
    case Way::keys: return CoverForm::of_keys;
    case Way::backward: return CoverForm::visits;
  }
  throw Bug("a kernel computes in no way that is known");
}

std::string ask_for_products(const std::set<int>& widths) {
  std::string out = "#define ATTUNE_PRODUCTS";
  for (const int width : widths) out += fmt::format(" ATTUNE_N{}", width);
  return out + "\n";
}

}  // namespace attune::codegen
