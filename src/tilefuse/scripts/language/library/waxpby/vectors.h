// w = alpha x + beta y

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_x, PAD_x);
}

TF_ROUTINE void load_y(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_y, PAD_y);
}

TF_ROUTINE void compute(REAL alpha, const REAL* x, REAL beta, const REAL* y, REAL* w, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < LOADS * VEC; ++s) w[s] = (alpha == 0 ? 0 : alpha * x[s]) + (beta == 0 ? 0 : beta * y[s]);
}

TF_ROUTINE void store_w(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_store_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_w);
}
