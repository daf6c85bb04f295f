// codegen/cuda/standalone.cu — kernels made by hand of mods written by hand: what a page looks like, and that it
// compiles
#include "forward_sm80.cuh"

namespace attune {

/// score  s + slope[h] * f32(kv - q)
/// mask   kv <= q
struct CausalAlibi {
  const float* slope;
  float log2_scale;

  struct Head {
    float slope;
  };
  struct Row {};
  struct Col {
    float lift;
  };
  static constexpr Traits traits{.masked = true, .has_last = true};

  __device__ Head head(Where at) const { return {slope[at.h]}; }
  __device__ Row row(Head, Where, Int) const { return {}; }
  __device__ Col col(Head head, Where, Int origin, Int kv) const { return {head.slope * (1 / ln2) * f32(kv - origin)}; }
  __device__ float factor(Head) const { return 1; }
  __device__ float exponent(float s, Head, Row, Col col, Where, Int, Int, Int) const {
    return s * log2_scale + col.lift;
  }
  __device__ float rest(Head head, Row, Where, Int origin, Int q) const { return head.slope * f32(origin - q); }
  __device__ Int first(Head, Row, Where, Int) const { return 0; }
  __device__ Int last(Head, Row, Where, Int q) const { return q; }
  __device__ bool keep(Head, Row, Col, Where, Int, Int) const { return true; }
  __device__ float prob(float p, Head, Row, Col, Where, Int, Int) const { return p; }
  __device__ float sink(Head, Where) const { return 0; }
  __device__ Bands bands(Head, Where at, Int q_begin, Int q_end) const {
    return {0, int(min(q_end, at.kv_len)), 0, int(min(q_begin + 1, at.kv_len))};
  }
};
static_assert(Mod<CausalAlibi>);

/// score  20 * tanh(s / 20), with a sink
/// prob   p > 0.001 ? p : 0
struct Softcap {
  float scale;

  struct Head {};
  struct Row {};
  struct Col {};
  static constexpr Traits traits{
      .bounded = true, .has_prob = true, .linear_prob = false, .has_sink = true, .most = 20 / ln2};

  __device__ Head head(Where) const { return {}; }
  __device__ Row row(Head, Where, Int) const { return {}; }
  __device__ Col col(Head, Where, Int, Int) const { return {}; }
  __device__ float factor(Head) const { return 1; }
  __device__ float exponent(float s, Head, Row, Col, Where, Int, Int, Int) const {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(s * scale * (1 / 20.0f)));
    return traits.most * y;
  }
  __device__ float rest(Head, Row, Where, Int, Int) const { return 0; }
  __device__ Int first(Head, Row, Where, Int) const { return 0; }
  __device__ Int last(Head, Row, Where, Int) const { return 0; }
  __device__ bool keep(Head, Row, Col, Where, Int, Int) const { return true; }
  __device__ float prob(float p, Head, Row, Col, Where, Int, Int) const { return p > 0.001f ? p : 0.0f; }
  __device__ float sink(Head, Where at) const { return static_cast<float>(at.h); }
  __device__ Bands bands(Head, Where at, Int, Int) const { return {0, at.kv_len, 0, at.kv_len}; }
};
static_assert(Mod<Softcap>);

/// mask   doc[q.i()] == doc[kv.i()]
struct Documents {
  const int* doc;
  float log2_scale;

  struct Head {};
  struct Row {
    int doc;
    __device__ Row of_lane(int lane) const { return {__shfl_sync(~0u, doc, lane)}; }
    __device__ bool is(const Row& other) const { return doc == other.doc; }
  };
  struct Col {
    int doc;
  };
  static constexpr Traits traits{
      .scaled = true, .masked = true, .has_keep = true, .keeps_by_fields = true, .listed = true};

  __device__ Head head(Where) const { return {}; }
  __device__ Row row(Head, Where, Int q) const { return {doc[q.i()]}; }
  __device__ Col col(Head, Where, Int, Int kv) const { return {doc[kv.i()]}; }
  __device__ float factor(Head) const { return log2_scale; }
  __device__ float exponent(float s, Head, Row, Col, Where, Int, Int, Int) const { return s * log2_scale; }
  __device__ float rest(Head, Row, Where, Int, Int) const { return 0; }
  __device__ Int first(Head, Row, Where, Int) const { return 0; }
  __device__ Int last(Head, Row, Where, Int) const { return 0; }
  __device__ bool keep(Head, Row row, Col col, Where, Int, Int) const { return row.doc == col.doc; }
  __device__ float prob(float p, Head, Row, Col, Where, Int, Int) const { return p; }
  __device__ float sink(Head, Where) const { return 0; }
  __device__ Bands bands(Head, Where at, Int, Int) const { return {0, at.kv_len, 0, 0}; }
};
static_assert(Mod<Documents>);

struct Narrow {
  using Element = bf16;
  using Out = bf16;
  static constexpr int m = 128, n = 64, warps = 4, d = 64, dv = 64, width = 64, width_v = 64, stages = 1, vector = 16,
                       store = 16, heads = 1;
  static constexpr Layout layout = Layout::dense;
  static constexpr bool exact = false, max = false;
};
struct Wide {
  using Element = f16;
  using Out = float;
  static constexpr int m = 64, n = 64, warps = 4, d = 128, dv = 128, width = 128, width_v = 100, stages = 2, vector = 8,
                       store = 16, heads = 4;
  static constexpr Layout layout = Layout::packed;
  static constexpr bool exact = false, max = true;
};
/// Elements that lie anyhow.
struct Anyhow {
  using Element = float;
  using Out = float;
  static constexpr int m = 64, n = 32, warps = 4, d = 48, dv = 32, width = 33, width_v = 5, stages = 2, vector = 0,
                       store = 0, heads = 1;
  static constexpr Layout layout = Layout::dense;
  static constexpr bool exact = true, max = true;
};

}  // namespace attune

using namespace attune;
template __global__ void attune::forward_sm80<Narrow, Plain>(const __grid_constant__ ForwardArgs,
                                                             const __grid_constant__ Plain);
template __global__ void attune::forward_sm80<Narrow, CausalAlibi>(const __grid_constant__ ForwardArgs,
                                                                   const __grid_constant__ CausalAlibi);
template __global__ void attune::forward_sm80<Wide, Softcap>(const __grid_constant__ ForwardArgs,
                                                             const __grid_constant__ Softcap);
template __global__ void attune::forward_sm80<Anyhow, Documents>(const __grid_constant__ ForwardArgs,
                                                                 const __grid_constant__ Documents);
