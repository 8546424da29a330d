// Attention in three steps: scores = q k^T in f32, their softmax in the operands' type, and its product with v. The library walks one batch
// dimension; operands whose batches lie in several are brought together first, because a product a batch would cost more than the copy.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <utility>

#include "@name@.h"
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

// An operand as the products see it: strides of one batch dimension, rows and columns; a dense copy where `copied`.
struct Side {
  int64_t batch = 0, row = 0, column = 0;
  bool copied = false;
  CopyShape copy;
  int64_t num_bytes = 0;  // of the copy
};

struct Attention::State {
  AttentionShape shape;
  Rows rows;
  int64_t count = 1;
  Product scores, sums;
  Side q, k, v, y;
  int64_t scores_bytes = 0, weights_bytes = 0;
};

namespace {

// `stride`: of a batch dimension of the operand.
Side side_of(const AttentionShape& s, int64_t AttentionBatch::* stride, int64_t rows, int64_t columns, int64_t by_row, int64_t by_column) {
  Side side;
  side.row = by_row;
  side.column = by_column;
  bool is_one = true;
  for (size_t n = 0; n + 1 < s.batches.size(); ++n) {
    is_one = is_one && s.batches[n].*stride == s.batches[n + 1].*stride * s.batches[n + 1].extent;
  }
  if (!s.batches.empty()) side.batch = s.batches.back().*stride;
  if (is_one) return side;
  int64_t count = 1;
  for (const AttentionBatch& batch : s.batches) count *= batch.extent;
  side.copied = true;
  side.copy.itemsize = itemsize(s.dtype);
  int64_t dense = count * rows * columns;
  side.num_bytes = rounded(dense * side.copy.itemsize);
  for (const AttentionBatch& batch : s.batches) {
    dense /= batch.extent;
    side.copy.extents.push_back(batch.extent);
    side.copy.from.push_back(batch.*stride);
    side.copy.to.push_back(dense);
  }
  side.copy.extents.insert(side.copy.extents.end(), {rows, columns});
  side.copy.from.insert(side.copy.from.end(), {by_row, by_column});
  side.copy.to.insert(side.copy.to.end(), {columns, int64_t(1)});
  side.batch = rows * columns;
  side.row = columns;
  side.column = 1;
  return side;
}

}  // namespace

Attention::Attention() = default;
Attention::~Attention() = default;
Attention::Attention(Attention&&) noexcept = default;

size_t Attention::scratch_bytes() const {
  if (!state_) return 0;
  const State& s = *state_;
  const size_t most = std::max(s.scores.scratch_bytes(), s.sums.scratch_bytes());
  return size_t(s.scores_bytes + s.weights_bytes + s.q.num_bytes + s.k.num_bytes + s.v.num_bytes + s.y.num_bytes) + most;
}

void Attention::prepare(Libraries& libraries, const AttentionShape& shape) {
  state_ = std::make_unique<State>();
  State& s = *state_;
  s.shape = shape;
  if (shape.dtype != Dtype::f32 && shape.dtype != Dtype::f16 && shape.dtype != Dtype::bf16) {
    fail(@NAME@_INTERNAL_ERROR, "attention of a type other than f32, f16 and bf16");
  }
  if (shape.batches.size() > size_t(max_batches)) fail(@NAME@_INTERNAL_ERROR, "attention over more than 6 batch dimensions");
  s.rows = {shape.rows, shape.keys, int(shape.batches.size()), {}, {}, shape.mask_row, shape.mask_column, float(shape.scale), shape.causal, shape.mask};
  for (size_t n = 0; n < shape.batches.size(); ++n) {
    s.count *= shape.batches[n].extent;
    s.rows.extents[n] = shape.batches[n].extent;
    s.rows.mask[n] = shape.batches[n].mask;
  }
  s.q = side_of(shape, &AttentionBatch::q, shape.rows, shape.depth, shape.q_row, shape.q_column);
  s.k = side_of(shape, &AttentionBatch::k, shape.keys, shape.depth, shape.k_row, shape.k_column);
  s.v = side_of(shape, &AttentionBatch::v, shape.keys, shape.width, shape.v_row, shape.v_column);
  s.y = side_of(shape, &AttentionBatch::y, shape.rows, shape.width, shape.y_row, shape.y_column);
  std::swap(s.y.copy.from, s.y.copy.to);
  const int64_t area = shape.rows * shape.keys;
  ProductShape scores = {shape.dtype, shape.rows, shape.keys, shape.depth, s.q.row, s.q.column, s.k.column, s.k.row, 0, 0,
                         shape.keys, 1, {Batch{s.count, s.q.batch, s.k.batch, 0, area}}, false, false, shape.alignment, true};
  ProductShape sums = {shape.dtype, shape.rows, shape.width, shape.keys, shape.keys, 1, s.v.row, s.v.column, 0, 0,
                       s.y.row, s.y.column, {Batch{s.count, area, s.v.batch, 0, s.y.batch}}, false, false, shape.alignment, false};
  s.scores.prepare(libraries, scores);
  s.sums.prepare(libraries, sums);
  s.scores_bytes = rounded(s.count * shape.rows * shape.keys * 4);
  s.weights_bytes = rounded(s.count * shape.rows * shape.keys * itemsize(shape.dtype));
}

void Attention::run(Libraries& libraries, const void* q, const void* k, const void* v, const void* mask, void* y, void* scratch,
                    cudaStream_t stream) {
  State& s = *state_;
  char* const scores = static_cast<char*>(scratch);
  char* const weights = scores + s.scores_bytes;
  char* rest = weights + s.weights_bytes;
  const auto brought = [&](const Side& side, const void* from) {
    if (!side.copied) return from;
    char* const to = rest;
    rest += side.num_bytes;
    copy(side.copy, from, to, stream);
    return static_cast<const void*>(to);
  };
  const void* const queries = brought(s.q, q);
  const void* const keys = brought(s.k, k);
  const void* const values = brought(s.v, v);
  char* const dense = rest;
  void* const made = s.y.copied ? dense : y;
  rest += s.y.num_bytes;
  s.scores.run(libraries, queries, keys, nullptr, scores, rest, stream);
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
  s.sums.run(libraries, weights, values, nullptr, made, rest, stream);
  if (s.y.copied) copy(s.y.copy, dense, y, stream);
}

}  // namespace @name@_parts
