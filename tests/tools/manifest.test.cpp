// tests/tools/manifest.test.cpp — manifests: the rows that lists combine to, and what is refused
#include "runtime/attention/offline/manifest.h"

#include <cstdlib>
#include <fstream>

#include "tests/catch.h"
#include "tests/golden.h"

namespace attune::tools {
namespace {

using runtime::Manifest, runtime::read_manifest;
namespace fs = std::filesystem;

/// A manifest in a folder of its own, which is the current folder meanwhile so that messages show no other path.
class Written {
 public:
  explicit Written(const std::string& text) {
    std::string made = (fs::temp_directory_path() / "attune-manifest-XXXXXX").string();
    REQUIRE(mkdtemp(made.data()) != nullptr);
    folder_ = made;
    fs::current_path(folder_);
    std::ofstream("plan.json", std::ios::binary) << text;
  }
  ~Written() {
    fs::current_path(before_);
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;
  Manifest read() const { return read_manifest("plan.json"); }

 private:
  fs::path before_ = fs::current_path(), folder_;
};

void refused(const std::string& golden, const std::string& text) {
  const Written file(text);
  try {
    file.read();
  } catch (const Error& e) {
    CHECK(golden.starts_with(e.code));
    tests::golden_error(golden, e.what());
    return;
  }
  FAIL_CHECK("this was taken: " << text);
}

}  // namespace

TEST_CASE("a manifest is mods x shapes x targets x passes", "[manifest]") {
  const Manifest all = Written(R"({
    "mods": [{"mask": "kv <= q"}, {"score": "c * s", "params": {"c": 2.0}, "captures": {"x": "f32[4]"},
              "lets": {"d": "kv - q", "e": "d + 1"}}],
    "shapes": [{"dtype": ["f32", "bf16"], "d": [64, 128], "max": true}, {}],
    "targets": ["avx2", "portable"],
    "passes": ["forward", "backward"]})")
                           .read();
  CHECK(all.size() == 2 * 5 * 2 * 2);
  CHECK(all[0].call.spec.dtype == DType::f32);
  CHECK(all[0].call.spec.d == 64);
  CHECK(all[0].call.spec.max);
  CHECK(all[0].pass == "forward");
  CHECK(all[1].pass == "backward");
  CHECK(all[0].mod == all[19].mod);
  CHECK(all[20].mod.params == std::vector<std::string>{"c=2.0"});
  CHECK(all[20].mod.lets == std::vector<std::string>{"d=kv - q", "e=d + 1"});
}

TEST_CASE("a manifest is an object, an array, or lines", "[manifest]") {
  const std::string one = R"({"mods": {"mask": "kv <= q"}, "targets": "sm_80"})";
  for (const std::string& text : {one, "[" + one + "]", one + "\n"}) {
    const Manifest read = Written(text).read();
    REQUIRE(read.size() == 1);
    CHECK(read[0].target.arch == 80);
    CHECK(read[0].pass == "forward");
  }
  for (const std::string& text : {"[" + one + ", " + one + "]", one + "\n" + one, one + "\n\n" + one + "\n"}) {
    const Manifest read = Written(text).read();
    REQUIRE(read.size() == 2);
    CHECK(read[0].mod == read[1].mod);
  }
}

TEST_CASE("what a manifest cannot say is refused with what it can", "[manifest]") {
  refused("manifest-json", "{\"targets\": ");
  refused("manifest-json.line", "{\"targets\": \"sm_80\"}\n{\"targets\": \"sm_80\"");
  refused("manifest-key", R"({"targets": "sm_80", "shape": {}})");
  refused("manifest-key.twice", R"({"targets": "sm_80", "mods": [{"score": "s", "mask": "true", "score": "s + 1"}]})");
  refused("manifest-key.mod", R"([{"targets": "sm_80"}, {"targets": "sm_80", "mods": {"scores": "s"}}])");
  refused("manifest-key.shape", R"({"targets": "sm_80", "shapes": {"heads": 4}})");
  refused("manifest-key.derived", R"({"targets": "sm_90a", "shapes": {"mla": true, "row_blocks": 2}})");
  refused("manifest-value.none", "[]");
  refused("manifest-value.no-mods", R"({"targets": "sm_80", "mods": []})");
  refused("manifest-value.no-passes", R"({"targets": "sm_80", "passes": []})");
  refused("manifest-value.no-widths", R"({"targets": "sm_80", "shapes": {"d": []}})");
  refused("manifest-value.grads", R"({"targets": "avx2", "shapes": {"grads": "all+none"}})");
  refused("bad-kernel.cpu", R"({"targets": "avx2", "shapes": {"kernel": "forward_sm80"}})");
  refused("manifest-value", R"({"targets": "sm_80", "shapes": {"load": 12}})");
  refused("manifest-value.mod", R"({"targets": "sm_80", "mods": {"score": 1}})");
  refused("manifest-value.object", R"({"targets": "sm_80", "mods": "kv <= q"})");
  refused("no-target", R"({"mods": {"mask": "kv <= q"}})");
  refused("unknown-target", R"({"targets": "sm_90"})");
  refused("unknown-target.none", R"({"targets": "quantum"})");
}

}  // namespace attune::tools
