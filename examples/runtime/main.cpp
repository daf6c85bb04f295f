// examples/runtime/main.cpp — a small decoder that embeds attune: a safetensors file and prompts in, tokens out
//
// pool.h has the threads, memory.h the tensors' memory, safetensors.h the file, model.h the layers, cache.h the pages
// and attune's calls, stream.h the stream of a GPU. On a GPU, attention and its cache are there, and the linear layers
// stay on the host: without a CUDA compiler at build time this program has no kernels of its own. twin.py makes models,
// and computes the same tokens in Python.
#include <attune/attune.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cache.h"
#include "model.h"
#include "pool.h"
#include "safetensors.h"
#include "stream.h"

using namespace runtime;

namespace {

constexpr const char* help = R"(usage: decoder MODEL --prompt 1,2,3 [--prompt 4,5 ...] [options]

  MODEL            a safetensors file that examples/runtime/twin.py made
  --prompt LIST    token numbers; several prompts are decoded together
  --tokens N       how many to generate for each prompt (32)
  --mod NAME       causal, window, softcap or alibi (causal)
  --device NAME    cpu, or cuda: attention and its cache on a GPU, the other layers on the host (cpu)
  --default-stream on a GPU, no stream of the program's own
  --page N         positions of a page of the cache (16)
  --workers N      threads, with the calling one (the machine's)
  --bundle FILE    kernels that `attune compile` made; with it, no compiler is needed
  --runs N         generate N times, and time the last: the first may compile (1)
  --json           one line of JSON with tokens and times
)";

struct Options {
  std::string model, mod = "causal", device = "cpu";
  std::vector<std::vector<int>> prompts;
  std::vector<std::string> bundles;
  int tokens = 32, page = 16, runs = 1;
  int workers = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  bool json = false, help = false, default_stream = false;

  attune::Device on() const { return device == "cuda" ? attune::Device::cuda() : attune::Device::cpu(); }
};

int whole(std::string_view option, std::string_view text, int least, int most) {
  int out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out < least || out > most)
    throw Refused(std::string(option) + " takes whole numbers from " + std::to_string(least) + " to " +
                  std::to_string(most) + ", and `" + std::string(text) + "` is none");
  return out;
}

Options parsed(int count, char** words) {
  Options out;
  const std::map<std::string_view, bool*> flags{
      {"--help", &out.help}, {"--json", &out.json}, {"--default-stream", &out.default_stream}};
  const std::map<std::string_view, std::string*> names{{"--mod", &out.mod}, {"--device", &out.device}};
  const std::map<std::string_view, int*> numbers{
      {"--tokens", &out.tokens}, {"--page", &out.page}, {"--workers", &out.workers}, {"--runs", &out.runs}};
  for (int i = 1; i < count; ++i) {
    const std::string option = words[i];
    const auto value = [&]() -> std::string {
      if (++i == count) throw Refused(option + " lacks its value; --help lists the options");
      return words[i];
    };
    if (const auto flag = flags.find(option); flag != flags.end()) {
      *flag->second = true;
    } else if (const auto name = names.find(option); name != names.end()) {
      *name->second = value();
    } else if (const auto number = numbers.find(option); number != numbers.end()) {
      *number->second = whole(option, value(), 1, option == "--workers" ? 1024 : 1 << 16);
    } else if (option == "--bundle") {
      out.bundles.push_back(value());
    } else if (option == "--prompt") {
      const std::string list = value() + ",";
      std::vector<int>& prompt = out.prompts.emplace_back();
      for (std::size_t at = 0, comma; (comma = list.find(',', at)) != list.npos; at = comma + 1)
        prompt.push_back(whole(option, std::string_view(list).substr(at, comma - at), 0, 1 << 30));
    } else if (option.starts_with("-") || !out.model.empty()) {
      throw Refused("there is no option " + option + "; --help lists them");
    } else {
      out.model = option;
    }
  }
  if (!out.help && (out.model.empty() || out.prompts.empty()))
    throw Refused("a model and a --prompt are needed; --help shows how");
  return out;
}

struct Sequence {
  std::vector<int> tokens;  ///< the prompt, then what is generated
  std::vector<int> pages{};
  int fed = 0;
};

struct Times {
  double prompt = 0, decode = 0;  ///< seconds
};

class Decoder {
 public:
  Decoder(const Options& options, const Model& model, const attune::Attention& attention)
      : options_(options), model_(model), attention_(attention), pool_(options.workers),
        stream_(options.device == "cuda" && !options.default_stream ? std::optional(options.on()) : std::nullopt),
        rows_(attune::Device::cpu()), cache_(options.on(), stream_, model.config(), sizes(), pool_) {}

  std::vector<Sequence> generate(Times& times) {
    std::vector<Sequence> all;
    for (const std::vector<int>& prompt : options_.prompts) all.push_back({prompt});
    for (int n = 0; n < options_.tokens; ++n) {
      const auto start = std::chrono::steady_clock::now();
      step(all);
      (n == 0 ? times.prompt
              : times.decode) += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    for (Sequence& one : all) cache_.release(one.pages);
    return all;
  }

 private:
  /// Pages for all prompts, and for the longest of them.
  Cache::Sizes sizes() const {
    Cache::Sizes out{0, options_.page, 0};
    for (const auto& prompt : options_.prompts) {
      const int positions = static_cast<int>(prompt.size()) + options_.tokens - 1;  // the last token is not fed
      const int pages = (positions + options_.page - 1) / options_.page;
      out.pages += pages;
      out.most_pages = std::max(out.most_pages, pages);
    }
    return out;
  }

  /// Feeds what each sequence has not fed yet, its prompt or its last token, and appends the next token to each.
  void step(std::vector<Sequence>& all) {
    Batch batch;
    const int most_pages = sizes().most_pages;
    for (Sequence& one : all) {
      const int length = static_cast<int>(one.tokens.size());
      cache_.grow(one.pages, length);  // there are pages for all
      for (int i = one.fed; i < length; ++i) {
        batch.tokens.push_back(one.tokens[static_cast<std::size_t>(i)]);
        batch.positions.push_back(i);
      }
      batch.ends.push_back(static_cast<int>(batch.tokens.size()) - 1);
      batch.starts.push_back(static_cast<int>(batch.tokens.size()));
      batch.first.push_back(one.fed);
      batch.lengths.push_back(length);
      batch.longest = std::max(batch.longest, length - one.fed);
      for (int p = 0; p < most_pages; ++p)
        batch.pages.push_back(p < static_cast<int>(one.pages.size()) ? one.pages[static_cast<std::size_t>(p)] : -1);
      one.fed = length;
    }
    rows_.clear();
    cache_.begin(batch);
    const std::vector<int> next = model_.next(
        batch.tokens, batch.positions, batch.ends, rows_, pool_,
        [&](int layer, const Rows& qkv, const Rows& o) { cache_.attend(attention_, layer, qkv, o); });
    for (std::size_t i = 0; i < all.size(); ++i) all[i].tokens.push_back(next[i]);
  }

  const Options& options_;
  const Model& model_;
  const attune::Attention& attention_;
  Pool pool_;
  Stream stream_;
  Arena rows_;
  Cache cache_;
};

std::string list(const std::vector<int>& tokens, std::size_t from) {
  std::string out;
  for (std::size_t i = from; i < tokens.size(); ++i) out += (i > from ? "," : "") + std::to_string(tokens[i]);
  return out;
}

void run(const Options& options) {
  for (const std::string& bundle : options.bundles) attune::offline::load(bundle);
  if (options.device != "cpu" && options.device != "cuda")
    throw Refused("--device takes cpu or cuda, and not " + options.device);
  const Model model{SafeTensors(options.model)};
  for (const auto& prompt : options.prompts)
    for (const int token : prompt)
      if (token >= model.config().vocabulary)
        throw Refused("the model has " + std::to_string(model.config().vocabulary) +
                      " tokens, and a prompt has token " + std::to_string(token));
  const std::vector<Mod> known = mods(model.config());
  const auto mod = std::find_if(known.begin(), known.end(), [&](const Mod& one) { return one.name == options.mod; });
  if (mod == known.end()) {
    std::string said = "there is no mod " + options.mod + "; there are";
    for (const Mod& one : known) said += "\n  " + one.name + ": " + one.says;
    throw Refused(said);
  }

  Decoder decoder(options, model, mod->attention);
  std::vector<Sequence> all;
  Times times;
  for (int i = 0; i < options.runs; ++i) all = decoder.generate(times = {});
  const double decoded = static_cast<double>(all.size()) * (options.tokens - 1);
  const double rate = decoded > 0 ? decoded / times.decode : 0;
  if (!options.json) {
    for (std::size_t i = 0; i < all.size(); ++i)
      std::printf("%s\n", list(all[i].tokens, options.prompts[i].size()).c_str());
    std::fprintf(stderr, "prompts took %.4f s, then %.1f tokens a second\n", times.prompt, rate);
    return;
  }
  std::string tokens;
  for (std::size_t i = 0; i < all.size(); ++i)
    tokens += (i ? ",[" : "[") + list(all[i].tokens, options.prompts[i].size()) + "]";
  std::printf(
      R"({"mod": "%s", "device": "%s", "workers": %d, "tokens": [%s], "prompt_seconds": %.6f, "decode_seconds": %.6f, "tokens_per_second": %.1f})"
      "\n",
      options.mod.c_str(), options.device.c_str(), options.workers, tokens.c_str(), times.prompt, times.decode, rate);
}

}  // namespace

int main(int count, char** words) try {
  const Options options = parsed(count, words);
  if (options.help)
    std::fputs(help, stdout);
  else
    run(options);
} catch (const Refused& e) {
  std::fprintf(stderr, "decoder: %s\n", e.what());
  return 2;
} catch (const std::exception& e) {  // attune::Error among them, which says what to do
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
