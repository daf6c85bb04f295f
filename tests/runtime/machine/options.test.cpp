// tests/runtime/machine/options.test.cpp — what variables mean, what they refuse, and which names are unknown
#include "runtime/machine/options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <attune/error.h>
#include <sched.h>

#include "runtime/machine/limits.h"
#include "runtime/machine/watch/log.h"
#include "tests/catch.h"
#include "tests/golden.h"

using namespace attune;
using codegen::Isa;

namespace {

runtime::Options parse(std::map<std::string, std::string, std::less<>> variables, int cpus = 3) {
  return runtime::parse_options(
      [&](std::string_view name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      cpus);
}

void refused(const std::string& golden, const std::string& name, const std::string& value) {
  try {
    parse({{name, value}});
  } catch (const Error& e) {
    CHECK(e.code == "option-value");
    tests::golden_error(golden, e.what());
    return;
  }
  FAIL_CHECK(name << " took " << value);
}

void refused_size(const std::string& value) {
  INFO(value);
  CHECK_THROWS_AS(parse({{"ATTUNE_CACHE_SIZE", value}}), Error);
}

}  // namespace

TEST_CASE("how many kernels stay loaded, and how much memory they may take", "[options]") {
  CHECK(parse({}).loaded == 1024);
  CHECK(parse({}).loaded_bytes == 256u << 20);
  CHECK(parse({{"ATTUNE_LOADED", "0"}}).loaded == 0);
  CHECK(parse({{"ATTUNE_LOADED_SIZE", "2M"}}).loaded_bytes == 2u << 20);
  for (const char* wrong : {"many", "-1", "3 ", "1K"}) CHECK_THROWS_AS(parse({{"ATTUNE_LOADED", wrong}}), Error);
  for (const char* wrong : {"many", "-1", "M", "1T"}) CHECK_THROWS_AS(parse({{"ATTUNE_LOADED_SIZE", wrong}}), Error);
}

TEST_CASE("without variables, or with empty ones, the machine decides", "[options]") {
  for (const runtime::Options& o : {parse({}), parse({{"ATTUNE_CPU", ""}, {"ATTUNE_THREADS", ""}})}) {
    CHECK(!o.cpu);
    CHECK(o.threads == 3);
  }
  CHECK(parse({}, 0).threads == 1);
  CHECK(parse({}, 5000).threads == runtime::max_threads);
}

TEST_CASE("every kind of CPU is named by its word", "[options]") {
  for (const std::string_view name : codegen::isa_names) {
    const auto cpu = parse({{"ATTUNE_CPU", std::string(name)}}).cpu;
    REQUIRE(cpu);
    CHECK(codegen::name_of(*cpu) == name);
  }
  CHECK(parse({{"ATTUNE_CPU", "avx512bf16"}}).cpu == Isa::avx512bf16);
  CHECK(!codegen::isa_named("AVX2"));
}

TEST_CASE("threads are a whole number from 1 to 1024", "[options]") {
  CHECK(parse({{"ATTUNE_THREADS", "1"}}).threads == 1);
  CHECK(parse({{"ATTUNE_THREADS", "1024"}}).threads == 1024);
  for (const char* wrong : {"-1", "1025", "99999999999999", "2.5", "4x", " 4", "+4", "0x4"}) {
    INFO(wrong);
    CHECK_THROWS_AS(parse({{"ATTUNE_THREADS", wrong}}), Error);
  }
}

TEST_CASE("a value that cannot be is refused with what can", "[options]") {
  refused("option-value.near", "ATTUNE_CPU", "AVX51");
  refused("option-value", "ATTUNE_CPU", "fastest");
  refused("option-value.threads", "ATTUNE_THREADS", "0");
  refused("option-value.off", "ATTUNE_CACHE", "Off");
  refused("option-value.list", "ATTUNE_LOG", "build,lauch,cache");
}

TEST_CASE("a log is of the channels that are named, with commas between", "[options]") {
  const auto log = [](const std::string& value) { return parse({{"ATTUNE_LOG", value}}).log; };
  CHECK(parse({}).log == 0);
  CHECK(log("passes") == 1);
  CHECK(log("launch,passes,launch") == 17);
  CHECK(log("all") == runtime::all_channels);
  CHECK(log("build,all") == runtime::all_channels);
  for (const char* wrong : {",", "build,", "build, launch", "Build", "none"}) {
    INFO(wrong);
    CHECK_THROWS_AS(log(wrong), Error);
  }
}

TEST_CASE("dumps, lines and verified rows are off unless they are asked for", "[options]") {
  const runtime::Options none = parse({});
  CHECK((none.dump.empty() && !none.lineinfo && none.verify == 0));
  CHECK(parse({{"ATTUNE_DUMP", "a folder"}}).dump == "a folder");
  CHECK(parse({{"ATTUNE_LINEINFO", "1"}}).lineinfo);
  CHECK_FALSE(parse({{"ATTUNE_LINEINFO", "0"}}).lineinfo);
  CHECK_THROWS_AS(parse({{"ATTUNE_LINEINFO", "yes"}}), Error);
  CHECK(parse({{"ATTUNE_VERIFY", "8"}}).verify == 8);
  for (const char* wrong : {"-1", "1000001", "3.5", "all"}) {
    INFO(wrong);
    CHECK_THROWS_AS(parse({{"ATTUNE_VERIFY", wrong}}), Error);
  }
}

TEST_CASE("an unknown variable is told with the one it resembles, and those of tests are theirs", "[options]") {
  const std::vector<std::string> names{"ATTUNE_CPU",     "ATTUNE_THREDS",       "ATTUNE_NUM_THREADS",  "ATTUNE_",
                                       "ATTUNE_APPROVE", "ATTUNE_FUZZ_SECONDS", "ATTUNE_TEST_THREADS", "ATTUNE_BENCH",
                                       "ATTUNE_TESTING", "OMP_NUM_THREADS",     "attune_cpu",          "ATTUNE_cpu"};
  std::string told;
  for (const auto& [name, meant] : runtime::unknown_variables(names))
    told += name + (meant ? " -> " + *meant : "") + "\n";
  CHECK(told == "ATTUNE_THREDS -> ATTUNE_THREADS\nATTUNE_NUM_THREADS\nATTUNE_\nATTUNE_TESTING\n"
                "ATTUNE_cpu -> ATTUNE_CPU\n");
}

TEST_CASE("the environment's variables are looked through", "[options]") {
  const auto is_told = [] {
    const auto unknown = runtime::unknown_variables();
    return std::ranges::find(unknown, "ATTUNE_CPUU", &runtime::UnknownVariable::name) != unknown.end();
  };
  CHECK(!is_told());
  setenv("ATTUNE_CPUU", "avx2", 1);
  CHECK(is_told());
  unsetenv("ATTUNE_CPUU");
}

TEST_CASE("the process's options are read once", "[options]") {
  const runtime::Options& first = runtime::options();
  CHECK(first.threads >= 1);
  const int before = first.threads;
  const char* known = std::getenv("ATTUNE_THREADS");
  const std::string kept = known ? known : "";
  setenv("ATTUNE_THREADS", before == 7 ? "8" : "7", 1);
  CHECK(&runtime::options() == &first);
  CHECK(runtime::options().threads == before);
  known ? setenv("ATTUNE_THREADS", kept.c_str(), 1) : unsetenv("ATTUNE_THREADS");
}

TEST_CASE("the CPUs are those that this thread may run on", "[options]") {
  cpu_set_t all, one;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  const double most = runtime::cpu_quota().value_or(CPU_COUNT(&all));
  CHECK(runtime::usable_cpus() == std::min(CPU_COUNT(&all), static_cast<int>(std::ceil(most))));
  CPU_ZERO(&one);
  std::size_t first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(runtime::usable_cpus() == 1);
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
}

TEST_CASE("a container's share of the CPUs is the least of its groups' limits", "[options]") {
  std::string root = (std::filesystem::temp_directory_path() / "attune-quota-XXXXXX").string();
  REQUIRE(mkdtemp(root.data()) != nullptr);
  const auto write = [&](const std::filesystem::path& file, const std::string& text) {
    create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  };
  const auto quota = [&] { return runtime::cpu_quota(root); };
  CHECK(!quota());
  // Version 2: none, of the group around, of its own, and without a period.
  write("proc/self/cgroup", "0::/pods/one\n");
  CHECK(!quota());
  write("sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
  CHECK(!quota());
  write("sys/fs/cgroup/pods/cpu.max", "1600000 100000\n");
  CHECK(quota() == 16.0);
  write("sys/fs/cgroup/pods/one/cpu.max", "250000 100000\n");
  CHECK(quota() == 2.5);
  write("sys/fs/cgroup/pods/one/cpu.max", "1\n");
  CHECK(quota() == 16.0);
  // Inside of a container the path is the host's, and its own group is where all groups are.
  write("proc/self/cgroup", "0::/../elsewhere\n");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  CHECK(quota() == 0.5);
  // Version 1: -1 is no limit; only the group of the CPU's controller counts.
  write("proc/self/cgroup", "5:memory:/pods\n4:cpu,cpuacct:/job\nnonsense\n");
  CHECK(!quota());
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK(!quota());
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  CHECK(quota() == 3.0);
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK(quota() == 2.0);
  std::filesystem::remove_all(root);
}

TEST_CASE("the table for the docs has a line for each row", "[options]") {
  tests::golden("runtime/options", runtime::option_table());
}

TEST_CASE("the cache is where the user's others are, unless it is said", "[options]") {
  CHECK(parse({}).cache.empty());
  CHECK(parse({{"HOME", "/h"}}).cache == "/h/.cache/attune");
  CHECK(parse({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache == "/x/attune");
  CHECK(parse({{"HOME", "/h"}, {"XDG_CACHE_HOME", "x"}}).cache == "/h/.cache/attune");
  CHECK(parse({{"HOME", "/h"}, {"ATTUNE_CACHE", "here"}}).cache == "here");
}

TEST_CASE("what a user's work leaves behind is where such things are", "[options]") {
  CHECK(parse({}).state.empty());
  CHECK(parse({{"HOME", "/h"}}).state == "/h/.local/state/attune");
  CHECK(parse({{"HOME", "/h"}, {"XDG_STATE_HOME", "/x"}}).state == "/x/attune");
}

TEST_CASE("the cache can be off, only read, or above the system's", "[options]") {
  CHECK(parse({{"HOME", "/h"}}).cache_system.empty());
  const runtime::Options both = parse({{"HOME", "/h"}, {"ATTUNE_CACHE_SYSTEM", "/s"}});
  CHECK(both.cache == "/h/.cache/attune");
  CHECK(both.cache_system == "/s");
  CHECK(!both.cache_read_only);
  const runtime::Options off = parse({{"HOME", "/h"}, {"ATTUNE_CACHE", "off"}, {"ATTUNE_CACHE_SYSTEM", "/s"}});
  CHECK(off.cache.empty());
  CHECK(off.cache_system.empty());
  CHECK(parse({{"ATTUNE_CACHE", "./off"}}).cache == "./off");
  CHECK(parse({{"ATTUNE_CACHE_MODE", "ro"}}).cache_read_only);
  CHECK(!parse({{"ATTUNE_CACHE_MODE", "rw"}}).cache_read_only);
  CHECK_THROWS_AS(parse({{"ATTUNE_CACHE_MODE", "read"}}), Error);
}

TEST_CASE("the cache's size is a number of bytes, or of more", "[options]") {
  CHECK(parse({}).cache_bytes == 1ull << 30);
  CHECK(parse({{"ATTUNE_CACHE_SIZE", "0"}}).cache_bytes == 0);
  CHECK(parse({{"ATTUNE_CACHE_SIZE", "1000"}}).cache_bytes == 1000);
  CHECK(parse({{"ATTUNE_CACHE_SIZE", "200M"}}).cache_bytes == 200ull << 20);
  CHECK(parse({{"ATTUNE_CACHE_SIZE", "8G"}}).cache_bytes == 8ull << 30);
  CHECK(parse({{"ATTUNE_CACHE_SIZE", "20000000000"}}).cache_bytes == 20'000'000'000);
  for (const char* value : {"-1", "M", "1T", "1.5G", "99999999999999999999", "1GG", " 1"}) refused_size(value);
}
