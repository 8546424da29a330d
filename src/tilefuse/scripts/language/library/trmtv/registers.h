// y = T' x, T a triangle of A: UPPER, or else the lower one; STRICT: without its diagonal

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_A, PAD_A);
}

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_column<ROWS, BY>(p, stride, e, ty, first, count, PAD_x);
}

TF_ROUTINE void compute(const REAL* A, const REAL* x, REAL* y, INDEX m, INDEX n, int tx, int ty) {
  if (UPPER ? n >= m + TILE_M : m >= n + TILE_N) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < COLUMNS * VEC; ++c) y[c] += A[r * COLUMNS * VEC + c] * x[r];
  } else {
    const INDEX beyond = m + ty - n - VEC * tx;  // row - column of the first word
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int c = 0; c < COLUMNS * VEC; ++c) {
        const INDEX below = beyond + (BY * r - VEC * BX * (c / VEC) - c % VEC);
        if (UPPER ? -below >= STRICT : below >= STRICT) y[c] += A[r * COLUMNS * VEC + c] * x[r];
      }
  }
}

TF_ROUTINE void store_y(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  if (ty == 0) tf_store_vector<COLUMNS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_y);
}
