// y = A x

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_tile<TILE_M, BY>(p, row_stride, column_stride, e, PITCH_A, tx, ty, row, column, rows, columns, PAD_A);
}

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0) e[tx] = tf_word_or(p, stride, first + tx, count, PAD_x);
}

TF_ROUTINE void compute(const REAL* A, const REAL* x, REAL* y, int tx, int ty) {
#pragma unroll
  for (int j = 0; j < TILE_N; j += BY) y[0] += A[tx * PITCH_A + j + ty] * x[j + ty];
}

TF_ROUTINE void store_y(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0 && first + tx < count) p[(first + tx) * stride] = e[0];
}
