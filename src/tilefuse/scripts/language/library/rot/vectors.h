// a = c x + s y and b = c y - s x: a plane rotation

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_x, PAD_x);
}

TF_ROUTINE void load_y(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_y, PAD_y);
}

TF_ROUTINE void compute(const REAL* x, const REAL* y, REAL c, REAL s, REAL* a, REAL* b, int tx, int ty) {
#pragma unroll
  for (int k = 0; k < LOADS * VEC; ++k) {
    a[k] = c * x[k] + s * y[k];
    b[k] = c * y[k] - s * x[k];
  }
}

TF_ROUTINE void store_a(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_store_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_a);
}

TF_ROUTINE void store_b(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_store_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_b);
}
