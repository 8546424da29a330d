// B = alpha x y^T + A

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0) e[tx] = tf_word_or(p, stride, first + tx, count, PAD_x);
}

TF_ROUTINE void load_y(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0) e[tx] = tf_word_or(p, stride, first + tx, count, PAD_y);
}

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_tile<TILE_M, BY>(p, row_stride, column_stride, e, PITCH_A, tx, ty, row, column, rows, columns, PAD_A);
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
  tf_store_tile<TILE_M, BY>(p, row_stride, column_stride, e, PITCH_B, tx, ty, row, column, rows, columns);
}
