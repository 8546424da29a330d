// k = number of the first word of largest absolute value

// `value` is -1 where there was no word; a NaN at the very beginning counts as infinite, any other as no word.
struct Largest {
  REAL value;
  long long at;
};

TF_ROUTINE void load_x(const REAL* p, INDEX stride, REAL* e, int tx, int ty, INDEX first, INDEX count) {
  tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_x, PAD_x);
}

TF_ROUTINE void compute(const REAL* x, Largest* k, INDEX first, int tx, int ty) {
#pragma unroll
  for (int s = 0; s < LOADS; ++s)
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const long long at = first + VEC * (BX * s + tx) + v;
      REAL value = x[s * VEC + v] < 0 ? -x[s * VEC + v] : x[s * VEC + v];
      if (value != value) value = at == 0 ? REAL(tf_inf_f32()) : REAL(-1);
      if (value > k[0].value || (value == k[0].value && value >= 0 && at < k[0].at)) {
        k[0].value = value;
        k[0].at = at;
      }
    }
}

TF_ROUTINE void combine(Largest* into, const Largest* other) {
  if (other->value > into->value || (other->value == into->value && other->at < into->at)) *into = *other;
}

TF_ROUTINE void finish(const Largest* s, long long* out) { out[0] = s->at; }
