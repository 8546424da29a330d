// B = alpha A

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_A, PAD_A);
}

TF_ROUTINE void compute(REAL alpha, const REAL* A, REAL* B, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < ROWS * COLUMNS * VEC; ++s) B[s] = alpha * A[s];
}

TF_ROUTINE void store_B(REAL* p, INDEX row_stride, INDEX column_stride, const REAL* e, int tx, int ty, INDEX row, INDEX column,
                        INDEX rows, INDEX columns) {
  tf_store_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_B);
}
