// Soft threshold, word by word.

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
#pragma unroll
  for (int s = 0; s < WORDS; ++s) {
    const INDEX at = first + BX * s + tx;
    e[s] = at < count ? p[at * stride] : PAD_x;
  }
}

TF_ROUTINE void compute(REAL t, const REAL* x, REAL* z, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < WORDS; ++s) z[s] = x[s] > t ? x[s] - t : x[s] < -t ? x[s] + t : 0;
}

TF_ROUTINE void store_z(REAL* p, INDEX stride, const REAL* e, int tx, int ty, INDEX first, INDEX count) {
#pragma unroll
  for (int s = 0; s < WORDS; ++s) {
    const INDEX at = first + BX * s + tx;
    if (at < count) p[at * stride] = e[s];
  }
}
