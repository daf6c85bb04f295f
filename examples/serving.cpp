// examples/serving.cpp — a small model serves 64 requests: a paged KV cache, and requests that come and go
//
// Each step takes the next tokens of all active requests, one request after another: a chunk of the prompt, or the last
// generated token. `append` puts their keys and values into the requests' pages, and one call reads all pages. Finished
// requests free their pages for waiting ones. Each finished request is computed once more without a cache and compared.
#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

using namespace attune;

namespace {

constexpr int vocabulary = 64, width = 32, heads = 4, kv_heads = 2, d = 16, layers = 3;
constexpr int requests = 64, most_active = 20;
constexpr int page = 8, pages_of_pool = 64, most_pages = 6;  // of a request
constexpr int most_fed = 8;                                  // tokens of a prompt in one step

const Attention attention{.score = mods::alibi(heads), .mask = mods::causal()};

// ---- the model ---------------------------------------------------------------------------------------------------

struct Matrix {
  int rows, columns;
  std::vector<float> x;

  Matrix(int r, int c) : rows(r), columns(c), x(static_cast<std::size_t>(r * c)) {}
  float& at(int i, int j) { return x[static_cast<std::size_t>(i * columns + j)]; }
  float at(int i, int j) const { return x[static_cast<std::size_t>(i * columns + j)]; }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.columns);
  for (int i = 0; i < a.rows; ++i)
    for (int n = 0; n < a.columns; ++n)
      for (int j = 0; j < b.columns; ++j) out.at(i, j) += a.at(i, n) * b.at(n, j);
  return out;
}
/// Each row divided by the root of its mean square.
Matrix normed(const Matrix& a) {
  Matrix out = a;
  for (int i = 0; i < a.rows; ++i) {
    float sum = 1e-6f;
    for (int j = 0; j < a.columns; ++j) sum += a.at(i, j) * a.at(i, j) / static_cast<float>(a.columns);
    for (int j = 0; j < a.columns; ++j) out.at(i, j) /= std::sqrt(sum);
  }
  return out;
}

/// Computes a layer's rows of o for some tokens from their rows of q, k and v, all heads together.
using Attend = std::function<Matrix(int layer, const Matrix& q, const Matrix& k, const Matrix& v)>;

class Model {
 public:
  /// A row for each token: how likely each next one is.
  Matrix logits(const std::vector<int>& tokens, const Attend& attend) const {
    Matrix x(static_cast<int>(tokens.size()), width);
    for (int i = 0; i < x.rows; ++i)
      for (int j = 0; j < width; ++j) x.at(i, j) = embedding_.at(tokens[static_cast<std::size_t>(i)], j);
    for (int l = 0; l < layers; ++l) {
      const Layer& of = layers_[static_cast<std::size_t>(l)];
      const Matrix in = normed(x);
      add(x, product(attend(l, product(in, of.q), product(in, of.k), product(in, of.v)), of.o));
      Matrix hidden = product(normed(x), of.up);
      for (float& y : hidden.x) y = std::max(y, 0.0f);
      add(x, product(hidden, of.down));
    }
    return product(normed(x), output_);
  }

 private:
  struct Layer {
    Matrix q, k, v, o, up, down;
  };
  static void add(Matrix& to, const Matrix& from) {
    for (std::size_t i = 0; i < to.x.size(); ++i) to.x[i] += from.x[i];
  }
  Matrix random(int rows, int columns) {
    Matrix out(rows, columns);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(rows)));
    for (float& x : out.x) x = normal(dice_);
    return out;
  }
  Layer layer() {
    return {random(width, heads * d), random(width, kv_heads * d), random(width, kv_heads * d),
            random(heads * d, width), random(width, 2 * width),    random(2 * width, width)};
  }

  std::mt19937 dice_{14};
  Matrix embedding_ = random(vocabulary, width), output_ = random(width, vocabulary);
  std::vector<Layer> layers_{layer(), layer(), layer()};
};
static_assert(layers == 3);

// ---- memory ------------------------------------------------------------------------------------------------------

template <class T, class From>
Array<T> sent(const Device& device, const std::vector<From>& values, std::initializer_list<std::int64_t> shape) {
  const auto here = Device::cpu().array<T>(shape);
  std::ranges::transform(values, here.data(), [](From x) { return static_cast<T>(x); });
  return here.on(device);
}
Matrix fetched(const Array<float>& o, int rows) {
  const auto here = o.on(Device::cpu());
  Matrix out(rows, heads * d);
  std::ranges::copy(here.values(), out.x.begin());
  return out;
}

/// The tokens that a step feeds, and where they belong.
struct Batch {
  std::vector<int> tokens, starts{0}, lengths, first, pages;
};

/// The keys and values of all requests, for each layer. T: the element type.
template <class T>
class Cache {
 public:
  explicit Cache(const Device& device) : device_(device) {
    for (int l = 0; l < layers; ++l)
      for (std::vector<Array<T>>* all : {&k_, &v_}) all->push_back(device.array<T>({pages_of_pool, page, kv_heads, d}));
  }

  Matrix attend(int layer, const Batch& batch, const Matrix& q, const Matrix& k, const Matrix& v) const {
    const std::int64_t rows = q.rows, active = static_cast<std::int64_t>(batch.lengths.size());
    // [serving]
    const auto starts = sent<int>(device_, batch.starts, {active + 1}),
               lengths = sent<int>(device_, batch.lengths, {active}), first = sent<int>(device_, batch.first, {active}),
               page_table = sent<int>(device_, batch.pages, {active, most_pages});
    const auto of_heads = [](const Array<T>& pool) { return pool.tensor().permuted({0, 2, 1, 3}); };
    const Tensor all_k = of_heads(k_[static_cast<std::size_t>(layer)]),
                 all_v = of_heads(v_[static_cast<std::size_t>(layer)]);
    const auto new_k = sent<float>(device_, k.x, {rows, kv_heads, d}),
               new_v = sent<float>(device_, v.x, {rows, kv_heads, d});
    append({.k_new = new_k,
            .v_new = new_v,
            .k = all_k,
            .v = all_v,
            .page_table = page_table,
            .kv_len = lengths,
            .cu_seqlens = starts});

    const auto queries = sent<T>(device_, q.x, {rows, heads, d});
    const auto o = device_.array<float>({rows, heads, d});
    attention.run({.q = queries,
                   .k = all_k,
                   .v = all_v,
                   .o = o,
                   .cu_seqlens_q = starts,
                   .kv_len = lengths,
                   .page_table = page_table,
                   .q_offsets = first,
                   .max_q_len = most_fed});
    // [serving]
    return fetched(o, q.rows);
  }

 private:
  Device device_;
  std::vector<Array<T>> k_, v_;
};

/// The same model for one request, without a cache.
template <class T>
Matrix attend_to_all(const Device& device, const Matrix& q, const Matrix& k, const Matrix& v) {
  const auto of_heads = [&](const Matrix& m, int count) { return sent<T>(device, m.x, {1, m.rows, count, d}); };
  const auto dense_q = of_heads(q, heads), dense_k = of_heads(k, kv_heads), dense_v = of_heads(v, kv_heads);
  const auto o = device.array<float>({1, q.rows, heads, d});
  const auto seen = [](const auto& t) { return t.tensor().permuted({0, 2, 1, 3}); };
  attention(seen(dense_q), seen(dense_k), seen(dense_v), seen(o));
  return fetched(o, q.rows);
}

// ---- serving -----------------------------------------------------------------------------------------------------

struct Request {
  std::vector<int> tokens;  ///< the prompt, then what is generated
  std::size_t prompt, wanted, fed = 0;
  std::vector<int> pages{};
};

int likeliest(const Matrix& logits, int row) {
  int best = 0;
  for (int j = 1; j < vocabulary; ++j)
    if (logits.at(row, j) > logits.at(row, best)) best = j;
  return best;
}

template <class T>
class Server {
 public:
  explicit Server(const Device& device) : device_(device), cache_(device) {
    for (int p = 0; p < pages_of_pool; ++p) free_.push_back(p);
    std::mt19937 dice(64);
    for (int i = 0; i < requests; ++i) {
      Request one{{}, 1 + dice() % 20, 2 + dice() % 24};
      for (std::size_t t = 0; t < one.prompt; ++t) one.tokens.push_back(static_cast<int>(dice() % vocabulary));
      waiting_.push_back(std::move(one));
    }
  }

  /// True if the model without a cache generates the same tokens. Rounded elements may change close decisions: another
  /// token may be likelier by up to `apart`.
  bool run(float apart) {
    std::printf("%6s %8s %8s %8s %14s %10s\n", "step", "active", "waiting", "tokens", "pages in use", "checked");
    for (int step = 1; !waiting_.empty() || !active_.empty(); ++step) {
      while (!waiting_.empty() && active_.size() < most_active && joins(waiting_.back())) waiting_.pop_back();
      const std::size_t in_use = pages_of_pool - free_.size();
      for (const Request& one : fed(apart)) std::ranges::copy(one.pages, std::back_inserter(free_));
      if (step % 16 == 1 || active_.empty())
        std::printf("%6d %8zu %8zu %8d %11zu/%d %10d\n", step, active_.size(), waiting_.size(), generated_, in_use,
                    pages_of_pool, checked_);
    }
    std::printf(
        "%d tokens are those of the model without a cache, %d as good as those, %d wrong; pages were taken %d times\n",
        same_, checked_ - same_ - wrong_, wrong_, taken_);
    return wrong_ == 0 && checked_ == generated_ && (apart > 0 || same_ == checked_) && taken_ > pages_of_pool;
  }

 private:
  /// The request gets all pages that it will need, if enough are free.
  bool joins(Request& one) {
    const std::size_t count = (one.prompt + one.wanted + page - 1) / page;
    if (count > free_.size()) return false;
    one.pages.assign(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
    taken_ += static_cast<int>(count);
    active_.push_back(std::move(one));
    return true;
  }

  /// One step of all active requests. Returns the finished requests.
  std::vector<Request> fed(float apart) {
    Batch batch;
    for (const Request& one : active_) {
      const std::size_t end = std::min(one.fed + most_fed, one.tokens.size());
      batch.tokens.insert(batch.tokens.end(), one.tokens.begin() + static_cast<std::ptrdiff_t>(one.fed),
                          one.tokens.begin() + static_cast<std::ptrdiff_t>(end));
      batch.starts.push_back(static_cast<int>(batch.tokens.size()));
      batch.first.push_back(static_cast<int>(one.fed));
      batch.lengths.push_back(static_cast<int>(end));
      for (std::size_t p = 0; p < most_pages; ++p) batch.pages.push_back(p < one.pages.size() ? one.pages[p] : -1);
    }
    const Matrix logits = model_.logits(batch.tokens,
                                        [&](int layer, const Matrix& q, const Matrix& k, const Matrix& v) {
                                          return cache_.attend(layer, batch, q, k, v);
                                        });
    std::vector<Request> done, stay;
    for (std::size_t i = 0; i < active_.size(); ++i) {
      Request& one = active_[i];
      one.fed = static_cast<std::size_t>(batch.lengths[i]);
      if (one.fed == one.tokens.size()) {
        one.tokens.push_back(likeliest(logits, batch.starts[i + 1] - 1));
        ++generated_;
      }
      if (one.tokens.size() == one.prompt + one.wanted) check(one, apart);
      (one.tokens.size() == one.prompt + one.wanted ? done : stay).push_back(std::move(one));
    }
    active_ = std::move(stay);
    return done;
  }

  void check(const Request& one, float apart) {
    const std::vector<int> before(one.tokens.begin(), one.tokens.end() - 1);
    const Matrix logits = model_.logits(before, [&](int, const Matrix& q, const Matrix& k, const Matrix& v) {
      return attend_to_all<T>(device_, q, k, v);
    });
    for (std::size_t t = one.prompt; t < one.tokens.size(); ++t) {
      const int row = static_cast<int>(t) - 1, wanted = likeliest(logits, row), got = one.tokens[t];
      same_ += got == wanted;
      wrong_ += !(logits.at(row, wanted) - logits.at(row, got) <= apart);
      ++checked_;
    }
  }

  Device device_;
  Model model_;
  Cache<T> cache_;
  std::vector<int> free_;
  std::vector<Request> waiting_, active_;
  int generated_ = 0, checked_ = 0, same_ = 0, wrong_ = 0, taken_ = 0;
};

}  // namespace

int main() {
  std::puts("CPU engine, f32");
  bool right = Server<float>(Device::cpu()).run(0);
  try {
    Server<bf16> on_gpu(Device::cuda());
    std::puts("GPU, bf16");
    // Two kernels round in different places: one sums over all keys at once, the other over splits of them.
    right &= on_gpu.run(0.1f);
  } catch (const Error& e) {
    if (e.code != "no-device" && e.code != "no-compiler") throw;
    std::printf("not on a GPU: %s\n", e.why.c_str());
  }
  std::puts(right ? "ok" : "wrong");
}
