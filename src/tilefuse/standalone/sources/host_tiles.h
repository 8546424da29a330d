// Tiles of matrix products on a processor: operands packed so that a tile of results stays in vector registers, scalar types, scratch.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "parts.h"

// Sums of products may keep the product's bits: more accurate, and the processor's own instruction.
#if defined(__clang__)
#define CONTRACTED
#define CONTRACT_HERE _Pragma("clang fp contract(fast)")
#else
#define CONTRACTED __attribute__((optimize("fp-contract=fast")))
#define CONTRACT_HERE
#endif

namespace @name@_parts {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64, tile_rows = 12;
#elif defined(__AVX__)
constexpr int vector_bytes = 32, tile_rows = 6;
#else
constexpr int vector_bytes = 16, tile_rows = 6;
#endif

template <class T> constexpr int lanes = vector_bytes / int(sizeof(T));
template <class T> constexpr int tile_columns = 2 * lanes<T>;
template <class T> struct VectorOf {
  typedef T type __attribute__((vector_size(vector_bytes), aligned(sizeof(T)), may_alias));
};

// A stretch of the inner dimension: a pointer to it in every row of the tile, and the packed second operand
// (`tile_columns` elements for each of its `length` places).
template <class T> struct Stretch {
  const T* rows[tile_rows];
  const T* packed;
  int64_t length;
};

// tile[row][column] = sum over all stretches.
template <class T> CONTRACTED inline void multiply_tile(const Stretch<T>* stretches, int64_t count, T* tile) {
  CONTRACT_HERE
  using Vector = typename VectorOf<T>::type;
  Vector sums[tile_rows][2] = {};
  for (int64_t n = 0; n < count; ++n) {
    const Stretch<T>& stretch = stretches[n];
    const T* packed = stretch.packed;
    for (int64_t k = 0; k < stretch.length; ++k, packed += tile_columns<T>) {
      const Vector left = *reinterpret_cast<const Vector*>(packed);
      const Vector right = *reinterpret_cast<const Vector*>(packed + lanes<T>);
#pragma GCC unroll 12
      for (int row = 0; row < tile_rows; ++row) {
        const T factor = stretch.rows[row][k];
        sums[row][0] += factor * left;
        sums[row][1] += factor * right;
      }
    }
  }
  for (int row = 0; row < tile_rows; ++row) {
    std::memcpy(tile + row * tile_columns<T>, &sums[row][0], vector_bytes);
    std::memcpy(tile + row * tile_columns<T> + lanes<T>, &sums[row][1], vector_bytes);
  }
}

// Elements as they lie in memory. Halves are computed in f32.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

inline float bits_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t float_as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float widened(Half x) {
#if defined(__FLT16_MAX__)
  _Float16 value;
  std::memcpy(&value, &x, 2);
  return float(value);
#else
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return bits_as_float(sign | 0x7f800000u | (rest & 1023u) << 13);
  const float scaled = bits_as_float(rest << 13) * 5.192296858534828e33f;  // 2^112: the exponents' difference, subnormals too
  return bits_as_float(sign | float_as_bits(scaled));
#endif
}

inline float widened(Bfloat x) { return bits_as_float(uint32_t(x.bits) << 16); }
template <class T> inline T widened(T x) { return x; }

inline void narrow(float value, Half& to) {
#if defined(__FLT16_MAX__)
  const _Float16 half = _Float16(value);
  std::memcpy(&to, &half, 2);
#else
  const uint32_t bits = float_as_bits(value), sign = bits >> 16 & 0x8000u;
  uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) {
    to.bits = uint16_t(sign | 0x7e00u);
  } else if (rest >= 0x477ff000u) {  // from 65520 on everything rounds to infinity
    to.bits = uint16_t(sign | 0x7c00u);
  } else if (rest < 0x38800000u) {  // subnormal: the sum's last bit is the half's
    to.bits = uint16_t(sign | (float_as_bits(bits_as_float(rest) + 0.5f) - 0x3f000000u));
  } else {
    rest += 0xfffu + (rest >> 13 & 1u);
    to.bits = uint16_t(sign | (rest - 0x38000000u) >> 13);
  }
#endif
}

inline void narrow(float value, Bfloat& to) {
  const uint32_t bits = float_as_bits(value);
  to.bits = uint16_t(value != value ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
template <class T, class E> inline void narrow(T value, E& to) { to = E(value); }

// The type in which elements are computed: f32, f64, or wrapping integers.
template <class E>
using Computed = std::conditional_t<std::is_same_v<E, double>, double,
                                    std::conditional_t<std::is_integral_v<E>, std::conditional_t<sizeof(E) == 8, uint64_t, uint32_t>, float>>;

// Calls `body` with a value of the element's type, or `otherwise` where that is no type of floats.
template <class Body, class Otherwise> void by_float_type(Dtype dtype, Body body, Otherwise otherwise) {
  switch (dtype) {
    case Dtype::f64: return body(double());
    case Dtype::f32: return body(float());
    case Dtype::f16: return body(Half());
    case Dtype::bf16: return body(Bfloat());
    default: return otherwise();
  }
}

// Memory of this thread that stays until the thread ends; a second use within one call takes another `slot`.
char* thread_scratch(int slot, size_t num_bytes);
template <class T> T* scratch_of(int slot, int64_t count) { return reinterpret_cast<T*>(thread_scratch(slot, size_t(count) * sizeof(T))); }

// Number of threads that a parallel loop has.
int num_threads();

}  // namespace @name@_parts
