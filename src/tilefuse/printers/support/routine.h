// What the routines of elementary functions may call: one thread each, the same text for the device and the host.

//@ TF_ROUTINE
#define TF_ROUTINE TF_INLINE

//@ tf_load16
// 16 bytes from memory that is aligned to them, in one access: 4 words of float, 2 of double.
template <class T> TF_INLINE void tf_load16(T* registers, const T* memory) { tf_vector_load<int(16 / sizeof(T))>(registers, memory); }

//@ tf_store16
template <class T> TF_INLINE void tf_store16(T* memory, const T* registers) { tf_vector_store<int(16 / sizeof(T))>(memory, registers); }

//@ tf_word_or
// One word, or the padding where it lies outside the data.
template <class T, class I, class J> TF_INLINE T tf_word_or(const T* memory, I stride, J at, I count, T padding) {
  return at < count ? memory[at * stride] : padding;
}

//@ tf_load_vector
// LOADS pieces of 16 bytes a thread, those of neighbouring threads side by side: slot (s0, s1) is word VEC * (THREADS * s0 + thread) + s1
// of the element that starts at word `first`. All loads are issued before any is waited for.
template <int LOADS, int THREADS, class T, class I>
TF_INLINE void tf_load_vector(const T* p, I stride, T* e, int thread, I first, I count, bool contiguous, T padding) {
  constexpr int vec = int(16 / sizeof(T));
  if (contiguous && first + LOADS * THREADS * vec <= count) {
#pragma unroll
    for (int s = 0; s < LOADS; ++s) tf_load16(e + s * vec, p + first + vec * (THREADS * s + thread));
  } else {
#pragma unroll
    for (int s = 0; s < LOADS; ++s)
#pragma unroll
      for (int v = 0; v < vec; ++v) e[s * vec + v] = tf_word_or(p, stride, first + vec * (THREADS * s + thread) + v, count, padding);
  }
}

//@ tf_store_vector
// As tf_load_vector; words outside the data are not written.
template <int LOADS, int THREADS, class T, class I>
TF_INLINE void tf_store_vector(T* p, I stride, const T* e, int thread, I first, I count, bool contiguous) {
  constexpr int vec = int(16 / sizeof(T));
  if (contiguous && first + LOADS * THREADS * vec <= count) {
#pragma unroll
    for (int s = 0; s < LOADS; ++s) tf_store16(p + first + vec * (THREADS * s + thread), e + s * vec);
  } else {
#pragma unroll
    for (int s = 0; s < LOADS; ++s)
#pragma unroll
      for (int v = 0; v < vec; ++v) {
        const I at = first + vec * (THREADS * s + thread) + v;
        if (at < count) p[at * stride] = e[s * vec + v];
      }
  }
}

//@ tf_load_matrix
// Slot (s0, s1, s2) is the word in row BY * s0 + ty, column VEC * (BX * s1 + tx) + s2 of the tile at (row, column).
template <int ROWS, int COLUMNS, int BX, int BY, class T, class I>
TF_INLINE void tf_load_matrix(const T* p, I row_stride, I column_stride, T* e, int tx, int ty, I row, I column, I rows, I columns,
                              bool contiguous, T padding) {
  constexpr int vec = int(16 / sizeof(T));
  if (contiguous && row + ROWS * BY <= rows && column + COLUMNS * BX * vec <= columns) {
    const T* const corner = p + (row + ty) * row_stride + column + vec * tx;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) tf_load16(e + (r * COLUMNS + c) * vec, corner + BY * r * row_stride + vec * BX * c);
  } else {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < COLUMNS * vec; ++c) {
        const I i = row + BY * r + ty, j = column + vec * (BX * (c / vec) + tx) + c % vec;
        e[r * COLUMNS * vec + c] = i < rows && j < columns ? p[i * row_stride + j * column_stride] : padding;
      }
  }
}

//@ tf_store_matrix
// As tf_load_matrix; words outside the data are not written.
template <int ROWS, int COLUMNS, int BX, int BY, class T, class I>
TF_INLINE void tf_store_matrix(T* p, I row_stride, I column_stride, const T* e, int tx, int ty, I row, I column, I rows, I columns,
                               bool contiguous) {
  constexpr int vec = int(16 / sizeof(T));
  if (contiguous && row + ROWS * BY <= rows && column + COLUMNS * BX * vec <= columns) {
    T* const corner = p + (row + ty) * row_stride + column + vec * tx;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) tf_store16(corner + BY * r * row_stride + vec * BX * c, e + (r * COLUMNS + c) * vec);
  } else {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < COLUMNS * vec; ++c) {
        const I i = row + BY * r + ty, j = column + vec * (BX * (c / vec) + tx) + c % vec;
        if (i < rows && j < columns) p[i * row_stride + j * column_stride] = e[r * COLUMNS * vec + c];
      }
  }
}

//@ tf_load_tile
// A tile in shared memory, `pitch` words from row to row: thread (tx, ty) brings the words of column tx in rows ty, ty + BY, ... below ROWS.
template <int ROWS, int BY, class T, class I>
TF_INLINE void tf_load_tile(const T* p, I row_stride, I column_stride, T* e, int pitch, int tx, int ty, I row, I column, I rows, I columns,
                            T padding) {
#pragma unroll
  for (int r = 0; r < ROWS; r += BY)
    e[(r + ty) * pitch + tx] =
        row + r + ty < rows && column + tx < columns ? p[(row + r + ty) * row_stride + (column + tx) * column_stride] : padding;
}

//@ tf_store_tile
// As tf_load_tile; words outside the data are not written.
template <int ROWS, int BY, class T, class I>
TF_INLINE void tf_store_tile(T* p, I row_stride, I column_stride, const T* e, int pitch, int tx, int ty, I row, I column, I rows,
                             I columns) {
#pragma unroll
  for (int r = 0; r < ROWS; r += BY)
    if (row + r + ty < rows && column + tx < columns)
      p[(row + r + ty) * row_stride + (column + tx) * column_stride] = e[(r + ty) * pitch + tx];
}

//@ tf_load_column
// COUNT single words a thread, THREADS apart: slot s is word THREADS * s + thread of the element that starts at `first`.
template <int COUNT, int THREADS, class T, class I>
TF_INLINE void tf_load_column(const T* p, I stride, T* e, int thread, I first, I count, T padding) {
#pragma unroll
  for (int s = 0; s < COUNT; ++s) e[s] = tf_word_or(p, stride, first + THREADS * s + thread, count, padding);
}

//@ tf_store_column
// As tf_load_column; words outside the data are not written.
template <int COUNT, int THREADS, class T, class I>
TF_INLINE void tf_store_column(T* p, I stride, const T* e, int thread, I first, I count) {
#pragma unroll
  for (int s = 0; s < COUNT; ++s) {
    const I at = first + THREADS * s + thread;
    if (at < count) p[at * stride] = e[s];
  }
}
