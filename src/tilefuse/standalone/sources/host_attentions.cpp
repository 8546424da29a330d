// Attention on a processor: blocks of queries, each with its scores in memory of the thread.
#include <algorithm>
#include <limits>

#include "@name@.h"
#include "host_library.h"
#include "host_tiles.h"

namespace @name@_parts {

namespace {

constexpr int64_t block_rows = 12 * tile_rows;

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

inline double exponential(double x) { return std::exp(x); }

// e to the x within two units in the last place, without branches: 2^n times the series of the rest.
inline float exponential(float x) {
  const float held = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
  const float whole = float(int(held * 1.44269504f + (held < 0 ? -0.5f : 0.5f)));
  const float rest = (held - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float sum = 1.0f / 5040;
  sum = sum * rest + 1.0f / 720;
  sum = sum * rest + 1.0f / 120;
  sum = sum * rest + 1.0f / 24;
  sum = sum * rest + 1.0f / 6;
  sum = sum * rest + 0.5f;
  sum = sum * rest + 1.0f;
  sum = sum * rest + 1.0f;
  // In two factors: the smallest results are subnormal.
  const int half = int(whole) / 2;
  const float made = sum * bits_as_float(uint32_t(half + 127) << 23) * bits_as_float(uint32_t(int(whole) - half + 127) << 23);
  return x != x ? x : made;
}

// Rows of a matrix in panels of as many columns as a tile has.
template <class E, class T>
void pack(const E* from, int64_t inner, int64_t columns, int64_t by_inner, int64_t by_column, T* to) {
  constexpr int width = tile_columns<T>;
  for (int64_t first = 0; first < columns; first += width) {
    const int64_t count = std::min<int64_t>(width, columns - first);
    for (int64_t k = 0; k < inner; ++k, to += width) {
      const E* const line = from + k * by_inner + first * by_column;
      for (int64_t n = 0; n < width; ++n) to[n] = n < count ? T(widened(line[n * by_column])) : T(0);
    }
  }
}

// The softmax of one row of scores, as weights whose sum is the result; scores that are not seen are -infinity.
template <class T> CONTRACTED T softmax(T* row, int64_t keys) {
  CONTRACT_HERE
  const T nothing = -std::numeric_limits<T>::infinity();
  T largest = nothing;
  bool is_number = true;
  for (int64_t key = 0; key < keys; ++key) {
    is_number = is_number && row[key] == row[key];
    largest = row[key] > largest ? row[key] : largest;
  }
  if (!is_number) largest = std::numeric_limits<T>::quiet_NaN();
  const T base = largest == nothing ? T(0) : largest;
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t key = 0; key < keys; ++key) {
    // exp(-infinity) by the series is the smallest number, not 0.
    row[key] = row[key] == nothing ? T(0) : exponential(row[key] - base);
    sum += row[key];
  }
  return sum;
}

template <class E> void attend(const AttentionShape& s, const E* q, const E* k, const E* v, const void* mask, E* y) {
  using T = Computed<E>;
  constexpr int width = tile_columns<T>;
  int64_t batches = 1;
  for (const AttentionBatch& batch : s.batches) batches *= batch.extent;
  const int64_t blocks = divided_up(s.rows, block_rows);
  const int64_t padded_keys = divided_up(s.keys, width) * width, padded_width = divided_up(s.width, width) * width;
  const T scale = T(s.scale), nothing = -std::numeric_limits<T>::infinity();
#pragma omp parallel for schedule(dynamic)
  for (int64_t task = 0; task < batches * blocks; ++task) {
    int64_t rest = task / blocks, at_q = 0, at_k = 0, at_v = 0, at_mask = 0, at_y = 0;
    for (size_t i = s.batches.size(); i-- > 0;) {
      const AttentionBatch& batch = s.batches[i];
      const int64_t place = rest % batch.extent;
      rest /= batch.extent;
      at_q += place * batch.q;
      at_k += place * batch.k;
      at_v += place * batch.v;
      at_mask += place * batch.mask;
      at_y += place * batch.y;
    }
    const int64_t begin = task % blocks * block_rows, rows = std::min(s.rows - begin, block_rows);
    T* const queries = scratch_of<T>(0, rows * s.depth);
    T* const scores = scratch_of<T>(1, rows * padded_keys);
    T* const packed = scratch_of<T>(2, std::max(s.depth * padded_keys, s.keys * padded_width));
    alignas(64) T tile[tile_rows * width];
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t n = 0; n < s.depth; ++n) queries[row * s.depth + n] = T(widened(q[at_q + (begin + row) * s.q_row + n * s.q_column]));
    }
    pack(k + at_k, s.depth, s.keys, s.k_column, s.k_row, packed);
    for (int64_t first = 0; first < s.keys; first += width) {
      for (int64_t row = 0; row < rows; row += tile_rows) {
        Stretch<T> stretch;
        stretch.packed = packed + first * s.depth;
        stretch.length = s.depth;
        for (int64_t i = 0; i < tile_rows; ++i) stretch.rows[i] = queries + std::min(row + i, rows - 1) * s.depth;
        multiply_tile(&stretch, 1, tile);
        for (int64_t i = 0; i < std::min<int64_t>(tile_rows, rows - row); ++i) {
          std::memcpy(scores + (row + i) * padded_keys + first, tile + i * width, sizeof(T) * width);
        }
      }
    }
    T sums[block_rows];
    for (int64_t row = 0; row < rows; ++row) {
      T* const line = scores + row * padded_keys;
      const int64_t from_mask = at_mask + (begin + row) * s.mask_row;
      for (int64_t key = 0; key < s.keys; ++key) line[key] *= scale;
      if (s.mask == 1) {
        const unsigned char* const seen = static_cast<const unsigned char*>(mask) + from_mask;
        for (int64_t key = 0; key < s.keys; ++key) line[key] = seen[key * s.mask_column] ? line[key] : nothing;
      } else if (s.mask == 2) {
        const E* const added = static_cast<const E*>(mask) + from_mask;
        for (int64_t key = 0; key < s.keys; ++key) line[key] += T(widened(added[key * s.mask_column]));
      }
      if (s.causal) {
        for (int64_t key = begin + row + 1; key < s.keys; ++key) line[key] = nothing;
      }
      sums[row] = softmax(line, s.keys);
    }
    pack(v + at_v, s.keys, s.width, s.v_row, s.v_column, packed);
    for (int64_t first = 0; first < s.width; first += width) {
      for (int64_t row = 0; row < rows; row += tile_rows) {
        Stretch<T> stretch;
        stretch.packed = packed + first * s.keys;
        stretch.length = s.keys;
        for (int64_t i = 0; i < tile_rows; ++i) stretch.rows[i] = scores + std::min(row + i, rows - 1) * padded_keys;
        multiply_tile(&stretch, 1, tile);
        for (int64_t i = 0; i < std::min<int64_t>(tile_rows, rows - row); ++i) {
          // A row that sees nothing is 0.
          const T factor = sums[row + i] == 0 ? T(0) : T(1) / sums[row + i];
          E* const to = y + at_y + (begin + row + i) * s.y_row + first * s.y_column;
          for (int64_t n = 0; n < std::min<int64_t>(width, s.width - first); ++n) narrow(T(tile[i * width + n] * factor), to[n * s.y_column]);
        }
      }
    }
  }
}

}  // namespace

void Attention::prepare(const AttentionShape& shape, const void*) { shape_ = shape; }

void Attention::run(const void* q, const void* k, const void* v, const void* mask, void* y) const {
  const auto with = [&](auto element) {
    using E = decltype(element);
    attend(shape_, static_cast<const E*>(q), static_cast<const E*>(k), static_cast<const E*>(v), mask, static_cast<E*>(y));
  };
  by_float_type(shape_.dtype, with, [] { fail(@NAME@_INTERNAL_ERROR, "attention of a type other than f64, f32, f16 and bf16"); });
}

}  // namespace @name@_parts
