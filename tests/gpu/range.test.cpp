// tests/gpu/range.test.cpp — ATTUNE_CHECK=range on a device: pages and slots that do not exist are refused before a
// launch
#include <attune/attune.h>
#include <attune/watch.h>

#include <string>
#include <vector>

#include "runtime/machine/options.h"
#include "tests/gpu/device.h"
#include "tests/gpu/replayed.h"
#include "tests/refusal.h"

namespace attune::tests {
namespace {

/// True, with a message, unless the option and a device are there.
bool skipped_or_unchecked() {
  if (runtime::set_option("ATTUNE_CHECK", "range")) return skipped();
  WARN("[skip] options were read before: run this case alone");
  return true;
}

const Device gpu = Device::cuda(), host = Device::cpu();

template <class Integer>
Array<Integer> on_gpu(std::initializer_list<std::int64_t> shape, std::initializer_list<Integer> values) {
  const auto out = gpu.array<Integer>(shape);
  set(out, values);
  return out;
}

/// Notices of what is not checked.
struct Told {
  std::vector<std::string> texts;
  watch::Watching watching = watch::on({.notice = [this](const watch::Notice& fact) {
    if (fact.of == watch::Notice::Of::check) texts.push_back(fact.text);
  }});
};

bool is_zero(const Array<bf16>& there) {
  const auto here = there.on(host);
  return std::ranges::all_of(here.values(), [](bf16 x) { return x.bits == 0; });
}

}  // namespace

TEST_CASE("ATTUNE_CHECK=range refuses slots of a device that the pool does not have, and nothing is written",
          "[gpu][small]") {
  if (skipped_or_unchecked()) return;
  const auto k_new = normal<bf16>(1, {2, 2, 16}).on(gpu), v_new = normal<bf16>(2, {2, 2, 16}).on(gpu);
  const auto k = gpu.array<bf16>({4, 2, 3, 16}), v = gpu.array<bf16>({4, 2, 3, 16});
  const auto slots = gpu.array<std::int64_t>({2});
  const Append call{.k_new = k_new, .v_new = v_new, .k = k, .v = v, .slots = slots};
  for (const std::int64_t wrong : {std::int64_t{-2}, std::int64_t{12}, std::int64_t{1} << 32}) {
    set<std::int64_t>(slots, {3, wrong});
    const Error refused = refusal([&] { append(call); });
    CHECK(refused.code == "slots");
    CHECK(refused.problem == "slots[1] is " + std::to_string(wrong));
    CHECK((is_zero(k) && is_zero(v)));
  }
  set<std::int64_t>(slots, {-1, 11});
  append(call);
  CHECK_FALSE((is_zero(k) || is_zero(v)));
  // What a graph captures is not checked, nor are its replays: the slot is left out.
  Told told;
  const Replayed replay([&](const Resources& with) { append(call, with); });
  CHECK(told.texts.size() == 1);
  set<std::int64_t>(slots, {12, -5});
  const auto before = k.on(host);
  replay();
  const auto after = k.on(host);
  CHECK(std::ranges::equal(before.values(), after.values(), {}, &bf16::bits, &bf16::bits));
}

TEST_CASE("ATTUNE_CHECK=range refuses new keys of a device that have no page or no room", "[gpu][small]") {
  if (skipped_or_unchecked()) return;
  const auto k_new = normal<bf16>(1, {2, 2, 2, 16}).on(gpu), v_new = normal<bf16>(2, {2, 2, 2, 16}).on(gpu);
  const auto k = gpu.array<bf16>({4, 2, 3, 16}), v = gpu.array<bf16>({4, 2, 3, 16});
  const auto table = on_gpu<std::int32_t>({2, 2}, {0, 1, 2, -1}), lengths = on_gpu<std::int32_t>({2}, {6, 4});
  const Append call{.k_new = k_new, .v_new = v_new, .k = k, .v = v, .page_table = table, .kv_len = lengths};
  CHECK(refusal([&] { append(call); }).problem == "page_table[1, 1] is not a page of the pool");
  set<std::int32_t>(lengths, {7, 3});
  CHECK(refusal([&] { append(call); }).problem == "kv_len[0] is 7");
  set<std::int32_t>(lengths, {6, 1});
  CHECK(refusal([&] { append(call); }).problem == "kv_len[1] is 1, and 2 keys are new");
  CHECK((is_zero(k) && is_zero(v)));
  set<std::int32_t>(lengths, {6, 3});
  append(call);
  CHECK_FALSE((is_zero(k) || is_zero(v)));
}

TEST_CASE("ATTUNE_CHECK=range refuses a call on a device that needs a page that does not exist", "[gpu][small]") {
  if (skipped_or_unchecked()) return;
  const auto pool = normal<bf16>(1, {5, 2, 16, 64}).on(gpu), values = normal<bf16>(2, {5, 2, 16, 64}).on(gpu),
             q = normal<bf16>(3, {2, 4, 1, 64}).on(gpu), o = gpu.array<bf16>({2, 4, 1, 64});
  const auto table = gpu.array<std::int32_t>({2, 3}), lengths = on_gpu<std::int32_t>({2}, {48, 20}),
             last = on_gpu<std::int32_t>({2}, {47, 19});
  const auto first = on_gpu<std::int32_t>({2}, {32, 0});
  const Forward call{.q = q, .k = pool, .v = values, .o = o, .kv_len = lengths, .page_table = table, .q_offsets = last};
  const Attention causal{.mask = mods::causal()}, windowed{.mask = mods::sliding_window(10)},
      late{.mask = [=](At at) { return at.kv >= Capture<int>(first, "first")[at.batch]; }};
  set<std::int32_t>(table, {0, 1, 2, 3, 4, -7});  // behind the end: anything
  causal.run(call);
  CHECK_FALSE(is_zero(o));
  const auto zero = gpu.array<bf16>({2, 4, 1, 64});
  copy(zero, o);
  for (const std::int32_t wrong : {-1, 5, 1 << 30}) {
    set<std::int32_t>(table, {0, wrong, 2, 3, 4, 0});
    const Error refused = refusal([&] { causal.run(call); });
    CHECK(refused.code == "page-table");
    CHECK(refused.problem == "page_table[0, 1] is not a page of the pool");
    CHECK(is_zero(o));
  }
  // A window, and a mask that reads a tensor on the device, need neither of entry 0's first two pages.
  set<std::int32_t>(table, {-1, -1, 2, 3, 4, 0});
  for (const Attention* attention : {&windowed, &late}) {
    attention->run(call);
    CHECK_FALSE(is_zero(o));
    copy(zero, o);
  }
  set<std::int32_t>(table, {-1, -1, 2, -1, 4, 0});
  for (const Attention* attention : {&windowed, &late})
    CHECK(refusal([&] { attention->run(call); }).problem == "page_table[1, 0] is not a page of the pool");
  // What a graph captures is not checked.
  set<std::int32_t>(table, {0, 1, 2, 3, 4, 0});
  Told told;
  const Replayed replay([&](const Resources& with) { causal.run(call, with); });
  CHECK(told.texts.size() == 1);
  set<std::int32_t>(table, {0, -1, 2, 3, 4, 0});
  replay();
}

}  // namespace attune::tests
