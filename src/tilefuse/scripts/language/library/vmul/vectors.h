// z = x y, word by word

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_x, PAD_x);
}

TF_ROUTINE void load_y(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_y, PAD_y);
}

TF_ROUTINE void compute(const REAL* x, const REAL* y, REAL* z, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < LOADS * VEC; ++s) z[s] = x[s] * y[s];
}

TF_ROUTINE void store_z(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_store_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_z);
}
