// B = alpha x y^T + A

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_column<ROWS, BY>(p, stride, e, ty, first, count, PAD_x);
}

TF_ROUTINE void load_y(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<COLUMNS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_y, PAD_y);
}

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_A, PAD_A);
}

TF_ROUTINE void compute(REAL alpha, const REAL* x, const REAL* y, const REAL* A, REAL* B, int tx, int ty) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int c = 0; c < COLUMNS * VEC; ++c) B[r * COLUMNS * VEC + c] =
          alpha == 0 ? A[r * COLUMNS * VEC + c] : alpha * x[r] * y[c] + A[r * COLUMNS * VEC + c];
}

TF_ROUTINE void store_B(REAL* p, INDEX row_stride, INDEX column_stride, const REAL* e, int tx, int ty, INDEX row, INDEX column,
                        INDEX rows, INDEX columns) {
  tf_store_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_B);
}
