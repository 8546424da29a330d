// Attention: by one kernel of cuDNN where it has one for the shape, else in three steps: scores = q k^T in f32, their softmax in the
// operands' type, and its product with v.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "@name@.h"
#include "cuda_attention.h"
#include "cuda_library.h"

namespace @name@_parts {

namespace {

constexpr int threads = 128;
constexpr int max_batches = 6;

__device__ float wide(float x) { return x; }
__device__ float wide(__half x) { return __half2float(x); }
__device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void store(float* to, float x) { *to = x; }
__device__ void store(__half* to, float x) { *to = __float2half(x); }
__device__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16(x); }

struct Rows {
  long long rows, keys;
  int num_batches;
  long long extents[max_batches], mask[max_batches], mask_row, mask_column;
  float scale;
  bool causal;
  int mask_kind;
};

template <bool LARGEST> __device__ float over_block(float x) {
  __shared__ float parts[threads / 32];
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, x, step);
    x = LARGEST ? fmaxf(x, other) : x + other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[0];
  for (int n = 1; n < threads / 32; ++n) x = LARGEST ? fmaxf(x, parts[n]) : x + parts[n];
  return x;
}

// One block a row of scores. A row that sees nothing becomes 0.
template <class T> __global__ void softmax_rows(Rows shape, const float* scores, T* weights, const void* mask) {
  const long long row = blockIdx.x % shape.rows;
  long long rest = blockIdx.x / shape.rows, at_mask = row * shape.mask_row;
  for (int d = shape.num_batches - 1; d >= 0; --d) {
    at_mask += rest % shape.extents[d] * shape.mask[d];
    rest /= shape.extents[d];
  }
  const float* const from = scores + blockIdx.x * shape.keys;
  T* const to = weights + blockIdx.x * shape.keys;
  const float nothing = -__int_as_float(0x7f800000);
  const auto score = [&](long long key) {
    if (shape.causal && key > row) return nothing;
    const float x = from[key] * shape.scale;
    const long long place = at_mask + key * shape.mask_column;
    if (shape.mask_kind == 1) return static_cast<const unsigned char*>(mask)[place] ? x : nothing;
    return shape.mask_kind == 2 ? x + wide(static_cast<const T*>(mask)[place]) : x;
  };
  float largest = nothing;
  for (long long key = threadIdx.x; key < shape.keys; key += threads) largest = fmaxf(largest, score(key));
  largest = over_block<true>(largest);
  const float base = largest == nothing ? 0 : largest;
  float sum = 0;
  for (long long key = threadIdx.x; key < shape.keys; key += threads) sum += expf(score(key) - base);
  sum = over_block<false>(sum);
  const float factor = largest == nothing ? 0 : 1 / sum;
  for (long long key = threadIdx.x; key < shape.keys; key += threads) store(to + key, expf(score(key) - base) * factor);
}

int64_t rounded(int64_t num_bytes) { return (num_bytes + 255) / 256 * 256; }

}  // namespace

struct Attention::State {
  AttentionShape shape;
  Rows rows;
  int64_t count = 1;
  std::unique_ptr<FusedAttention> fused;
  Product scores, sums;
  int64_t scores_bytes = 0, weights_bytes = 0;
};

Attention::Attention() = default;
Attention::~Attention() = default;
Attention::Attention(Attention&&) noexcept = default;

size_t Attention::scratch_bytes() const {
  if (!state_) return 0;
  if (state_->fused) return state_->fused->scratch_bytes();
  const size_t most = std::max(state_->scores.scratch_bytes(), state_->sums.scratch_bytes());
  return size_t(state_->scores_bytes + state_->weights_bytes) + most;
}

void Attention::prepare(Libraries& libraries, const AttentionShape& shape) {
  state_ = std::make_unique<State>();
  State& s = *state_;
  s.shape = shape;
  if (shape.dtype != Dtype::f32 && shape.dtype != Dtype::f16 && shape.dtype != Dtype::bf16) {
    fail(@NAME@_INTERNAL_ERROR, "attention of a type other than f32, f16 and bf16");
  }
  s.fused = fused_attention(libraries, shape);
  if (s.fused) return;
  if (shape.batches.size() > size_t(max_batches)) fail(@NAME@_INTERNAL_ERROR, "attention over more than 6 batch dimensions");
  s.rows = {shape.rows, shape.keys, int(shape.batches.size()), {}, {}, shape.mask_row, shape.mask_column, float(shape.scale), shape.causal, shape.mask};
  for (size_t n = 0; n < shape.batches.size(); ++n) {
    s.count *= shape.batches[n].extent;
    s.rows.extents[n] = shape.batches[n].extent;
    s.rows.mask[n] = shape.batches[n].mask;
  }
  ProductShape scores = {shape.dtype, shape.rows, shape.keys, shape.depth, shape.q_row, shape.q_column, shape.k_column, shape.k_row, 0, 0,
                         shape.keys, 1, {}, false, false, 16, true};
  ProductShape sums = {shape.dtype, shape.rows, shape.width, shape.keys, shape.keys, 1, shape.v_row, shape.v_column, 0, 0,
                       shape.y_row, shape.y_column, {}, false, false, 16, false};
  int64_t distance = shape.rows * shape.keys;
  for (size_t n = shape.batches.size(); n-- > 0;) {
    const AttentionBatch& b = shape.batches[n];
    scores.batches.insert(scores.batches.begin(), Batch{b.extent, b.q, b.k, 0, distance});
    sums.batches.insert(sums.batches.begin(), Batch{b.extent, distance, b.v, 0, b.y});
    distance *= b.extent;
  }
  scores.alignment = sums.alignment = shape.alignment;
  s.scores.prepare(libraries, scores);
  s.sums.prepare(libraries, sums);
  s.scores_bytes = rounded(s.count * shape.rows * shape.keys * 4);
  s.weights_bytes = rounded(s.count * shape.rows * shape.keys * itemsize(shape.dtype));
}

void Attention::run(Libraries& libraries, const void* q, const void* k, const void* v, const void* mask, void* y, void* scratch,
                    cudaStream_t stream) {
  State& s = *state_;
  if (s.fused) return s.fused->run(libraries, q, k, v, y, scratch, stream);
  char* const scores = static_cast<char*>(scratch);
  char* const weights = scores + s.scores_bytes;
  char* const rest = weights + s.weights_bytes;
  s.scores.run(libraries, q, k, nullptr, scores, rest, stream);
  const unsigned blocks = unsigned(s.count * s.shape.rows);
  switch (s.shape.dtype) {
    case Dtype::f32:
      softmax_rows<float><<<blocks, threads, 0, stream>>>(s.rows, reinterpret_cast<float*>(scores), reinterpret_cast<float*>(weights), mask);
      break;
    case Dtype::f16:
      softmax_rows<__half><<<blocks, threads, 0, stream>>>(s.rows, reinterpret_cast<float*>(scores), reinterpret_cast<__half*>(weights), mask);
      break;
    default:
      softmax_rows<__nv_bfloat16><<<blocks, threads, 0, stream>>>(s.rows, reinterpret_cast<float*>(scores),
                                                                   reinterpret_cast<__nv_bfloat16*>(weights), mask);
  }
  check(cudaGetLastError(), "softmax");
  s.sums.run(libraries, weights, v, nullptr, y, rest, stream);
}

}  // namespace @name@_parts
