// s = A^T r

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_A, PAD_A);
}

TF_ROUTINE void load_r(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_column<ROWS, BY>(p, stride, e, ty, first, count, PAD_r);
}

TF_ROUTINE void compute(const REAL* A, const REAL* r, REAL* s, int tx, int ty) {
#pragma unroll
  for (int k = 0; k < ROWS; ++k)
#pragma unroll
    for (int c = 0; c < COLUMNS * VEC; ++c) s[c] += A[k * COLUMNS * VEC + c] * r[k];
}

TF_ROUTINE void store_s(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0) tf_store_vector<COLUMNS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_s);
}
