// tests/runtime/machine/watch/log.test.cpp — the text of log lines, the channels they go to, and that each is written
// whole
#include "runtime/machine/watch/log.h"

#include <array>
#include <fstream>
#include <regex>
#include <thread>

#include <unistd.h>

#include "runtime/machine/watch/watch.h"
#include "tests/catch.h"
#include "tests/golden.h"

namespace attune::runtime {
namespace {

const std::string mod = "e57d3a534a7f95ea0123456789abcdef";

watch::Built built(watch::Built::From from) {
  return {.mod = mod,
          .kernel = "forward_sm90:m=128,n=96",
          .target = "sm_90a",
          .from = from,
          .seconds = 1.25,
          .phases = from == watch::Built::From::compiler
                        ? std::vector<watch::Built::Phase>{{"C++ to PTX", 0.75}, {"assembler", 0.5}}
                        : std::vector<watch::Built::Phase>{},
          .bytes = 4096,
          .registers = 168,
          .spilled = 8,
          .shared = 196608,
          .flaw = "spills 8 bytes of registers",
          .key = "0123456789abcdef"};
}
const watch::Lowered lowered{.mod = mod, .steps = {{"trace", 12e-6, 11}, {"simplify", 0.0015, 9}}, .seconds = 0.0016};
const watch::Chosen chosen{.mod = mod,
                           .target = "sm_90a",
                           .kernel = "forward_sm90:m=128,n=96",
                           .notes = {"as this machine was tuned"},
                           .rejected = {{"forward_sm90:m=192,n=96", "spills 320 bytes of registers"}}};
const watch::Called called{.call = "forward",
                           .mod = mod,
                           .target = "avx2",
                           .kernel = "tiles",
                           .dtype = "bf16",
                           .batch = 1,
                           .q_heads = 8,
                           .kv_heads = 2,
                           .q_len = 100,
                           .kv_len = 300,
                           .d = 64,
                           .dv = 128,
                           .packed = true,
                           .workspace = 1024,
                           .seconds = 0.25,
                           .file = "mine.cpp",
                           .line = 12};
const watch::Notice notice{watch::Notice::Of::cache, "an entry\nis discarded"};

/// Lines as written, through a file that is read back.
class Written {
 public:
  Written() { REQUIRE((file_ = mkstemp(name_.data())) >= 0); }
  ~Written() {
    close(file_);
    unlink(name_.c_str());
  }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;
  int file() const { return file_; }
  std::vector<std::string> lines() const {
    std::ifstream in(name_);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }

 private:
  std::string name_ = "/tmp/attune-log-XXXXXX";
  int file_ = -1;
};

void give_all(const watch::Callbacks& to) {
  if (to.lowered) to.lowered(lowered);
  if (to.chosen) to.chosen(chosen);
  if (to.built) to.built(built(watch::Built::From::compiler));
  if (to.built) to.built(built(watch::Built::From::disk));
  if (to.called) to.called(called);
  if (to.notice) to.notice(notice);
  if (to.notice) to.notice({watch::Notice::Of::dump, "a folder"});
}

/// The first words of the lines in these channels.
std::string told(unsigned channels) {
  const Written written;
  give_all(log_to(written.file(), channels));
  std::string out;
  const std::regex shape(R"(attune \d\d:\d\d:\d\d\.\d{6} \d+ (\w+) .*)");
  for (const std::string& line : written.lines()) {
    std::smatch match;
    INFO(line);
    REQUIRE(std::regex_match(line, match, shape));
    out += match[1].str() + " ";
  }
  return out;
}

}  // namespace

TEST_CASE("each fact has its line", "[log]") {
  std::string all;
  for (const std::string& line : {log_line(lowered), log_line(chosen), log_line(built(watch::Built::From::compiler)),
                                  log_line(built(watch::Built::From::disk)), log_line(called), log_line(notice)})
    all += line + "\n";
  tests::golden("runtime/log", all);
}

TEST_CASE("a channel has its facts, and trouble is in every log", "[log]") {
  CHECK(told(all_channels) == "passes choose build cache launch cache dump ");
  const std::array<std::string, 5> own{"passes dump ", "choose dump ", "cache cache dump ", "build dump ",
                                       "launch dump "};
  for (unsigned channel = 0; channel < channel_names.size(); ++channel) {
    INFO(channel_names[channel]);
    CHECK(told(1u << channel) == own[channel]);
  }
  CHECK(told(0).empty());
}

TEST_CASE("lines of many threads stay whole", "[log]") {
  const Written written;
  const watch::Callbacks log = log_to(written.file(), all_channels);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) log.called(called);
    });
  for (std::thread& t : threads) t.join();
  const std::vector<std::string> lines = written.lines();
  CHECK(lines.size() == 200);
  const std::string end = log_line(called);
  for (const std::string& line : lines) CHECK((line.starts_with("attune ") && line.ends_with(end)));
}

}  // namespace attune::runtime
