// B = alpha x y^T + A

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0) e[tx] = tf_word_or(p, stride, first + tx, count, PAD_x);
}

TF_ROUTINE void load_y(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0) e[tx] = tf_word_or(p, stride, first + tx, count, PAD_y);
}

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY)
    e[(j + ty) * PITCH_A + tx] =
        row + j + ty < rows && column + tx < columns ? p[(row + j + ty) * row_stride + (column + tx) * column_stride] : PAD_A;
}

TF_ROUTINE void compute(REAL alpha, const REAL* x, const REAL* y, const REAL* A, REAL* B, int tx, int ty) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY) {
    const REAL a = A[(j + ty) * PITCH_A + tx];
    B[(j + ty) * PITCH_B + tx] = alpha == 0 ? a : alpha * x[j + ty] * y[tx] + a;
  }
}

TF_ROUTINE void store_B(REAL* p, INDEX row_stride, INDEX column_stride, const REAL* e, int tx, int ty, INDEX row, INDEX column,
                        INDEX rows, INDEX columns) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY)
    if (row + j + ty < rows && column + tx < columns) p[(row + j + ty) * row_stride + (column + tx) * column_stride] = e[(j + ty) * PITCH_B + tx];
}
