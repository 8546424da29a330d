// z = alpha A x + beta y

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_A, PAD_A);
}

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<COLUMNS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_x, PAD_x);
}

TF_ROUTINE void load_y(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_column<ROWS, BY>(p, stride, e, ty, first, count, PAD_y);
}

TF_ROUTINE void compute(REAL alpha, const REAL* A, const REAL* x, REAL beta, const REAL* y, REAL* z, INDEX m, INDEX n, int tx, int ty) {
  const bool adds_y = n == 0 && tx == 0 && beta != 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    REAL sum = 0;
#pragma unroll
    for (int c = 0; c < COLUMNS * VEC; ++c) sum += A[r * COLUMNS * VEC + c] * x[c];
    if (alpha != 0) z[r] += alpha * sum;
    if (adds_y) z[r] += beta * y[r];
  }
}

TF_ROUTINE void store_z(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (tx == 0) tf_store_column<ROWS, BY>(p, stride, e, ty, first, count);
}
