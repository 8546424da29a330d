// s = A^T r

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_tile<TILE_M, BY>(p, row_stride, column_stride, e, PITCH_A, tx, ty, row, column, rows, columns, PAD_A);
}

TF_ROUTINE void load_r(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0) e[tx] = tf_word_or(p, stride, first + tx, count, PAD_r);
}

TF_ROUTINE void compute(const REAL* A, const REAL* r, REAL* s, int tx, int ty) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY) s[0] += A[(j + ty) * PITCH_A + tx] * r[j + ty];
}

TF_ROUTINE void store_s(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0 && first + tx < count) p[(first + tx) * stride] = e[0];
}
