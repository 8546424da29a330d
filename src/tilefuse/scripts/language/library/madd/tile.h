// C = A + B

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_tile<TILE_M, BY>(p, row_stride, column_stride, e, PITCH_A, tx, ty, row, column, rows, columns, PAD_A);
}

TF_ROUTINE void load_B(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
  tf_load_tile<TILE_M, BY>(p, row_stride, column_stride, e, PITCH_B, tx, ty, row, column, rows, columns, PAD_B);
}

TF_ROUTINE void compute(const REAL* A, const REAL* B, REAL* C, int tx, int ty) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY) C[(j + ty) * PITCH_C + tx] = A[(j + ty) * PITCH_A + tx] + B[(j + ty) * PITCH_B + tx];
}

TF_ROUTINE void store_C(REAL* p, INDEX row_stride, INDEX column_stride, const REAL* e, int tx, int ty, INDEX row, INDEX column,
                        INDEX rows, INDEX columns) {
  tf_store_tile<TILE_M, BY>(p, row_stride, column_stride, e, PITCH_C, tx, ty, row, column, rows, columns);
}
