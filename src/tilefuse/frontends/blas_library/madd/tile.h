// C = A + B

TF_ROUTINE void load_A(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY)
    e[(j + ty) * PITCH_A + tx] =
        row + j + ty < rows && column + tx < columns ? p[(row + j + ty) * row_stride + (column + tx) * column_stride] : PAD_A;
}

TF_ROUTINE void load_B(const REAL* p, INDEX row_stride, INDEX column_stride, REAL* e, int tx, int ty, INDEX row, INDEX column,
                       INDEX rows, INDEX columns) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY)
    e[(j + ty) * PITCH_B + tx] =
        row + j + ty < rows && column + tx < columns ? p[(row + j + ty) * row_stride + (column + tx) * column_stride] : PAD_B;
}

TF_ROUTINE void compute(const REAL* A, const REAL* B, REAL* C, int tx, int ty) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY) C[(j + ty) * PITCH_C + tx] = A[(j + ty) * PITCH_A + tx] + B[(j + ty) * PITCH_B + tx];
}

TF_ROUTINE void store_C(REAL* p, INDEX row_stride, INDEX column_stride, const REAL* e, int tx, int ty, INDEX row, INDEX column,
                        INDEX rows, INDEX columns) {
#pragma unroll
  for (int j = 0; j < TILE_M; j += BY)
    if (row + j + ty < rows && column + tx < columns) p[(row + j + ty) * row_stride + (column + tx) * column_stride] = e[(j + ty) * PITCH_C + tx];
}
