// tests/c/errors.test.cpp — the errors of attune/c.h's functions for invalid calls
#include <attune/c.h>

#include <array>
#include <cstring>
#include <string>

#include "tests/catch.h"
#include "tests/golden.h"

using attune::tests::golden_error;

namespace {

std::string message(attune_error* error) {
  if (!error) return "nothing was refused";
  attune_said said{};
  said.size = sizeof said;
  attune_error_read(error, &said);
  std::string out = said.message;
  attune_error_free(error);
  return out;
}

struct Attention {
  attune_attention* made = nullptr;
  explicit Attention(const char* score = nullptr) {
    attune_what what{};
    what.size = sizeof what;
    what.score.text = score;
    REQUIRE(attune_new(&what, &made) == nullptr);
  }
  ~Attention() { attune_free(made); }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;
};

}  // namespace

TEST_CASE("messages about structs and pointers", "[c]") {
  attune_attention* none = nullptr;
  attune_what what{};
  golden_error("null-pointer", message(attune_new(nullptr, &none)));
  what.size = 12;
  golden_error("struct-size", message(attune_new(&what, &none)));
  struct {
    attune_what what;
    long long later;
  } newer{{}, 5};
  newer.what.size = sizeof newer;
  golden_error("struct-size.newer", message(attune_new(&newer.what, &none)));
  what.size = sizeof what;
  const attune_name name{"slope", 'x', 1};
  what.captures = &name;
  what.n_captures = 1;
  golden_error("declared-kind", message(attune_new(&what, &none)));
  what.n_captures = 0;
  what.mask.text = "kv <= w";
  what.mask.file = "model.py";
  what.mask.line = 42;
  golden_error("unknown-name.of-file", message(attune_new(&what, &none)));
  what.mask.text = nullptr;
  what.target = 7;
  golden_error("bad-choice.c-target", message(attune_new(&what, &none)));
  what.target = ATTUNE_AUTOMATIC;
  for (const double scale : {double(NAN), double(INFINITY), 1e300}) {
    what.scale = &scale;
    CHECK_THAT(message(attune_new(&what, &none)), Catch::Contains("[bad-scale]"));
  }
  CHECK(none == nullptr);
}

TEST_CASE("messages about a backward that is given what a forward takes", "[c]") {
  const Attention attention;
  attune_call call{};
  call.size = sizeof call;
  call.pass = ATTUNE_BACKWARD;
  call.fixed_split_size = 128;
  golden_error("forward-only", message(attune_run(attention.made, &call, nullptr)));
}

TEST_CASE("messages about tensors of DLPack", "[c]") {
  const Attention attention;
  std::array<float, 64> data{};
  std::array<std::int64_t, 4> shape{1, 1, 4, 16};
  attune_tensor good{};
  good.data = data.data();
  good.device.device_type = static_cast<decltype(good.device.device_type)>(ATTUNE_CPU);
  good.ndim = 4;
  good.dtype = {ATTUNE_FLOAT, 32, 1};
  good.shape = shape.data();
  const auto told = [&](const char* golden, const auto& spoil) {
    attune_tensor q = good;
    spoil(q);
    attune_call call{};
    call.size = sizeof call;
    call.q = &q;
    call.k = call.v = &good;
    golden_error(golden, message(attune_run(attention.made, &call, nullptr)));
  };
  told("dlpack-lanes", [](attune_tensor& t) { t.dtype.lanes = 4; });
  told("dlpack-type", [](attune_tensor& t) { t.dtype.code = 5, t.dtype.bits = 64; });
  told("dlpack-type.e5m2", [](attune_tensor& t) { t.dtype.code = 12, t.dtype.bits = 8; });
  told("dlpack-offset", [](attune_tensor& t) { t.data = reinterpret_cast<void*>(4096), t.byte_offset = -64ull; });
  told("dlpack-device",
       [](attune_tensor& t) { t.device.device_type = static_cast<decltype(t.device.device_type)>(10); });
  told("null-pointer.shape", [](attune_tensor& t) { t.shape = nullptr; });
}

TEST_CASE("a captured tensor that is too short for the call is refused", "[c]") {
  const attune_name name{"x", 'f', 1};
  attune_what what{};
  what.size = sizeof what;
  what.captures = &name;
  what.n_captures = 1;
  what.score.text = "s + x[q]";
  attune_attention* made = nullptr;
  REQUIRE(attune_new(&what, &made) == nullptr);
  std::array<float, 64> data{}, out{};
  std::array<std::int64_t, 4> shape{1, 1, 4, 16};
  attune_tensor q{}, x{}, o{};
  for (attune_tensor* t : {&q, &x, &o}) {
    t->data = t == &o ? out.data() : data.data();
    t->device.device_type = static_cast<decltype(t->device.device_type)>(ATTUNE_CPU);
    t->dtype = {ATTUNE_FLOAT, 32, 1};
    t->ndim = t == &x ? 1 : 4;
    t->shape = shape.data();
  }
  std::int64_t length = 3;
  x.shape = &length;
  attune_call call{};
  call.size = sizeof call;
  call.q = call.k = call.v = &q;
  call.o = &o;
  const attune_tensor* const captures[] = {&x};
  call.captures = captures;
  call.n_captures = 1;
  golden_error("capture-range.c", message(attune_run(made, &call, nullptr)));
  length = 4;
  CHECK(attune_run(made, &call, nullptr) == nullptr);
  attune_free(made);
}

TEST_CASE("messages about facts", "[c]") {
  attune_watch* none = nullptr;
  golden_error("unknown-fact", message(attune_watch_facts(
                                   "built,compilng", [](void*, const char*) {}, nullptr, &none)));
}

TEST_CASE("messages about options", "[c]") {
  golden_error("unknown-option.c", message(attune_option("ATTUNE_THREAD", "2")));
  const Attention attention("s + 1.0f");
  golden_error("option-late", message(attune_option("ATTUNE_THREADS", "2")));
}
