// Matrix products on a processor: the second operand is packed in panels of as many columns as a tile has.
#include <algorithm>

#include "@name@.h"
#include "host_library.h"
#include "host_tiles.h"

namespace @name@_parts {

namespace {

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// How a product's batches run through the second operand: those that share one need it packed once.
struct Packing {
  int64_t matrices = 1, panels, panel_elements;
};

Packing packing_of(const ProductShape& s, int columns_of_tile) {
  Packing found;
  for (const Batch& batch : s.batches) found.matrices *= batch.b ? batch.extent : 1;
  found.panels = divided_up(s.columns, columns_of_tile);
  found.panel_elements = s.inner * columns_of_tile;
  return found;
}

template <class E, class T> void pack(const ProductShape& s, const E* b, T* to) {
  constexpr int width = tile_columns<T>;
  const Packing packing = packing_of(s, width);
#pragma omp parallel for if (packing.matrices * packing.panels * packing.panel_elements > 65536)
  for (int64_t n = 0; n < packing.matrices * packing.panels; ++n) {
    int64_t rest = n / packing.panels, at = 0;
    for (size_t i = s.batches.size(); i-- > 0;) {
      if (!s.batches[i].b) continue;
      at += rest % s.batches[i].extent * s.batches[i].b;
      rest /= s.batches[i].extent;
    }
    const int64_t first = n % packing.panels * width;
    const int64_t count = std::min<int64_t>(width, s.columns - first);
    const E* const from = b + at + first * s.b_column;
    T* const panel = to + n * packing.panel_elements;
    if (s.b_inner == 1) {
      for (int64_t column = 0; column < width; ++column) {
        for (int64_t k = 0; k < s.inner; ++k) panel[k * width + column] = column < count ? T(widened(from[column * s.b_column + k])) : T(0);
      }
    } else {
      for (int64_t k = 0; k < s.inner; ++k) {
        for (int64_t column = 0; column < count; ++column) panel[k * width + column] = T(widened(from[k * s.b_inner + column * s.b_column]));
        for (int64_t column = count; column < width; ++column) panel[k * width + column] = T(0);
      }
    }
  }
}

template <class E> struct Rows {
  const ProductShape& s;
  const Computed<E>* packed;
  const E* bias;
  E* d;
};

// Writes the part of a tile that lies inside the result.
template <class E, class T> void store_tile(const Rows<E>& to, const T* tile, int64_t row, int64_t num_rows, int64_t column, int64_t num_columns,
                                            int64_t at_bias, int64_t at_d) {
  const ProductShape& s = to.s;
  for (int64_t i = 0; i < num_rows; ++i) {
    E* const place = to.d + at_d + (row + i) * s.d_row + column * s.d_column;
    const T* const sums = tile + i * tile_columns<T>;
    if (to.bias) {
      const E* const bias = to.bias + at_bias + (row + i) * s.bias_row + column * s.bias_column;
      for (int64_t j = 0; j < num_columns; ++j) narrow(T(sums[j] + T(widened(bias[j * s.bias_column]))), place[j * s.d_column]);
    } else {
      for (int64_t j = 0; j < num_columns; ++j) narrow(sums[j], place[j * s.d_column]);
    }
  }
}

template <class E> void multiply(const ProductShape& s, const E* a, const E* b, const E* bias, E* d, const char* packed_before) {
  using T = Computed<E>;
  constexpr int width = tile_columns<T>, block_rows = 4 * tile_rows;
  const Packing packing = packing_of(s, width);
  const T* packed = reinterpret_cast<const T*>(packed_before);
  if (!packed) {
    T* const made = scratch_of<T>(0, packing.matrices * packing.panels * packing.panel_elements);
    pack(s, b, made);
    packed = made;
  }
  int64_t batches = 1;
  for (const Batch& batch : s.batches) batches *= batch.extent;
  const int64_t blocks = divided_up(s.rows, block_rows);
  // Few columns a task where there are few rows, so that every thread has work.
  const int64_t wanted = std::max<int64_t>(1, 4 * num_threads() / std::max<int64_t>(1, batches * blocks));
  const int64_t group = std::max<int64_t>(1, divided_up(packing.panels, wanted));
  const int64_t groups = divided_up(packing.panels, group);
  const bool direct = std::is_same_v<E, T> && (s.a_inner == 1 || s.inner == 1);
  const Rows<E> rows = {s, packed, bias, d};
#pragma omp parallel for schedule(dynamic) if (batches * s.rows * s.columns * s.inner > 32768)
  for (int64_t task = 0; task < batches * blocks * groups; ++task) {
    const int64_t first_panel = task % groups * group, block = task / groups % blocks;
    int64_t rest = task / groups / blocks, at_a = 0, matrix = 0, scale = 1, at_bias = 0, at_d = 0;
    for (size_t i = s.batches.size(); i-- > 0;) {
      const Batch& batch = s.batches[i];
      const int64_t place = rest % batch.extent;
      rest /= batch.extent;
      at_a += place * batch.a;
      at_bias += place * batch.bias;
      at_d += place * batch.d;
      if (batch.b) {
        matrix += place * scale;
        scale *= batch.extent;
      }
    }
    const int64_t begin = block * block_rows, end = std::min<int64_t>(s.rows, begin + block_rows);
    const T* from;
    int64_t step = s.a_row;
    if (direct) {
      from = reinterpret_cast<const T*>(a) + at_a + begin * s.a_row;
    } else {
      T* const own = scratch_of<T>(1, block_rows * s.inner);
      for (int64_t row = begin; row < end; ++row) {
        const E* const line = a + at_a + row * s.a_row;
        for (int64_t k = 0; k < s.inner; ++k) own[(row - begin) * s.inner + k] = T(widened(line[k * s.a_inner]));
      }
      from = own;
      step = s.inner;
    }
    alignas(64) T tile[tile_rows * width];
    for (int64_t panel = first_panel; panel < std::min(packing.panels, first_panel + group); ++panel) {
      for (int64_t row = begin; row < end; row += tile_rows) {
        Stretch<T> stretch;
        stretch.packed = rows.packed + (matrix * packing.panels + panel) * packing.panel_elements;
        stretch.length = s.inner;
        const int64_t count = std::min<int64_t>(tile_rows, end - row);
        for (int64_t i = 0; i < tile_rows; ++i) stretch.rows[i] = from + (row - begin + std::min(i, count - 1)) * step;
        multiply_tile(&stretch, 1, tile);
        store_tile(rows, tile, row, count, panel * width, std::min<int64_t>(width, s.columns - panel * width), at_bias, at_d);
      }
    }
  }
}

template <class Body> void by_type(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::i64: case Dtype::u64: return body(uint64_t());
    case Dtype::i32: case Dtype::u32: return body(uint32_t());
    case Dtype::i16: case Dtype::u16: return body(uint16_t());
    case Dtype::i8: case Dtype::u8: return body(uint8_t());
    default: return by_float_type(dtype, body, [] { fail(@NAME@_INTERNAL_ERROR, "a matrix product of a type without arithmetic"); });
  }
}

}  // namespace

void Product::prepare(const ProductShape& shape, const void* constant_b) {
  shape_ = shape;
  if (!constant_b) return;
  by_type(shape.dtype, [&](auto element) {
    using E = decltype(element);
    using T = Computed<E>;
    const Packing packing = packing_of(shape, tile_columns<T>);
    packed_ = Memory(size_t(packing.matrices * packing.panels * packing.panel_elements) * sizeof(T));
    pack(shape, static_cast<const E*>(constant_b), reinterpret_cast<T*>(packed_.get()));
  });
}

void Product::run(const void* a, const void* b, const void* bias, void* d) const {
  by_type(shape_.dtype, [&](auto element) {
    using E = decltype(element);
    multiply(shape_, static_cast<const E*>(a), static_cast<const E*>(b), static_cast<const E*>(bias), static_cast<E*>(d), packed_.get());
  });
}

}  // namespace @name@_parts
