// r = sqrt(x^T x), without overflow or underflow on the way

// Squares by the size of their words: those above BIG and below SMALL are scaled.
struct Squares {
  double big, middle, small;
};

#define BIG 1.997919072202235e+146         // 2^486
#define BIG_SCALE 1.1113793747425387e-162   // 2^-538
#define SMALL 1.4916681462400413e-154       // 2^-511
#define SMALL_SCALE 4.4989137945431964e+161 // 2^537

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_x, PAD_x);
}

TF_ROUTINE void compute(const REAL* x, Squares* r, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < LOADS * VEC; ++s) {
    const double a = x[s] < 0 ? -x[s] : x[s];
    if (sizeof(REAL) == 4) {
      r[0].middle += a * a;
    } else {
      const double up = a > BIG ? a * BIG_SCALE : 0, down = a < SMALL ? a * SMALL_SCALE : 0, same = a > BIG || a < SMALL ? 0 : a;
      r[0].big += up * up;
      r[0].middle += same * same;
      r[0].small += down * down;
    }
  }
}

TF_ROUTINE void combine(Squares* into, const Squares* other) {
  into->big += other->big;
  into->middle += other->middle;
  into->small += other->small;
}

TF_ROUTINE void finish(const Squares* s, REAL* out) {
  if (s->big > 0)
    out[0] = REAL(sqrt(s->big + s->middle * BIG_SCALE * BIG_SCALE) / BIG_SCALE);
  else if (s->middle == 0)
    out[0] = REAL(sqrt(s->small) / SMALL_SCALE);
  else
    out[0] = REAL(sqrt(s->middle + s->small / SMALL_SCALE / SMALL_SCALE));
}

#undef BIG
#undef BIG_SCALE
#undef SMALL
#undef SMALL_SCALE
