// C = A + B

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_A, PAD_A);
}

TF_ROUTINE void load_B(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_B, PAD_B);
}

TF_ROUTINE void compute(const REAL* A, const REAL* B, REAL* C, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < ROWS * COLUMNS * VEC; ++s) C[s] = A[s] + B[s];
}

TF_ROUTINE void store_C(REAL* p, INDEX row_stride, INDEX column_stride, const REAL* e, int tx, int ty, INDEX row, INDEX column,
                        INDEX rows, INDEX columns) {
  tf_store_matrix<ROWS, COLUMNS, BX, BY>(p, row_stride, column_stride, e, tx, ty, row, column, rows, columns, CONTIGUOUS_C);
}
