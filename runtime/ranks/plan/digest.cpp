// runtime/ranks/plan/digest.cpp — what ranks compare: numbers and bytes as one digest, and the masks of calls
#include "runtime/ranks/plan/digest.h"

#include <cstring>

#include <attune/error.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace attune::runtime::ranks {

void Digester::add(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  words_.insert(words_.end(), {bytes.size(), h.high64, h.low64});
}

ir::Digest Digester::digest() const {
  const XXH128_hash_t h = XXH3_128bits(words_.data(), words_.size() * sizeof words_[0]);
  return {h.high64, h.low64};
}

namespace {

/// The elements of a tensor on the host, in logical order.
std::vector<std::byte> contents(const Tensor& t) {
  const std::size_t size = size_of(t.dtype);
  std::vector<std::byte> out(static_cast<std::size_t>(t.size()) * size);
  std::byte* into = out.data();
  Tensor::Extents at{};
  for (std::int64_t i = 0; i < t.size(); ++i, into += size) {
    std::int64_t rest = i, offset = 0;
    for (int d = t.rank; d-- > 0;) {
      const auto dim = static_cast<std::size_t>(d);
      at[dim] = rest % t.shape[dim];
      rest /= t.shape[dim];
      offset += at[dim] * t.strides[dim];
    }
    std::memcpy(into, static_cast<const std::byte*>(t.data) + offset * static_cast<std::int64_t>(size), size);
  }
  return out;
}

bool contiguous(const Tensor& t) {
  std::int64_t expected = 1;
  for (int d = t.rank; d-- > 0;) {
    const auto dim = static_cast<std::size_t>(d);
    if (t.shape[dim] != 1 && t.strides[dim] != expected) return false;
    expected *= t.shape[dim];
  }
  return true;
}

}  // namespace

MaskOf mask_of(const compiler::LoweredMod& lowered, const compiler::Args& args) {
  const compiler::CoverOf of = compiler::cover_of(lowered.cover);
  Digester data;
  for (const std::uint32_t slot : of.captures) {
    const Tensor& t = args.captures[slot];
    if (t.device.kind != Device::Kind::cpu)
      throw Error("sharding-capture",
                  fmt::format("the mask reads `{}`, which is on a device", lowered.mod.captures[slot].name), {},
                  fmt::format("it is {}, and the host works out which rank needs which keys", t.describe()),
                  "make a Sharding of an attention that captures a copy on the host");
    data.add(static_cast<std::int64_t>(t.dtype));
    data.add(std::int64_t{t.rank});
    for (int d = 0; d < t.rank; ++d) data.add(t.shape[static_cast<std::size_t>(d)]);
    if (contiguous(t))
      data.add({static_cast<const std::byte*>(t.data), static_cast<std::size_t>(t.size()) * size_of(t.dtype)});
    else
      data.add(contents(t));
  }
  for (const std::uint32_t slot : of.params) data.add(args.params[slot]);
  return {of.mask, data.digest()};
}

}  // namespace attune::runtime::ranks
