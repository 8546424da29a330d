// r = |x_0| + |x_1| + ...

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_x, PAD_x);
}

TF_ROUTINE void compute(const REAL* x, REAL* r, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < LOADS * VEC; ++s) r[0] += x[s] < 0 ? -x[s] : x[s];
}
