// How many words are not 0. Words outside the data are 0 (the padding), and so are not counted.

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_x, PAD_x);
}

// Adds to the thread's own partial value; partial values are added up by generated code.
TF_ROUTINE void compute(const REAL* x, REAL* c, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < LOADS * VEC; ++s) c[0] += x[s] == 0 ? 0 : 1;
}
