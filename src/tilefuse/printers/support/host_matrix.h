// Products of f32 operands as the matrix unit computes them (`cuda_matrix_f32.cuh`), one term at a time.

//@ tf_tf32_nearest
// A number rounded to 11 bits, halves away from zero, as cvt.rna.tf32.f32 does.
TF_INLINE float tf_tf32_nearest(float x) {
  return tf_isfinite(x) ? tf_float_of((tf_bits(x) + 0x1000u) & 0xffffe000u) : x;
}

//@ tf_tf32_low
// What the unit reads of a number that is not rounded: its first 11 bits.
TF_INLINE float tf_tf32_low(float x) { return tf_float_of(tf_bits(x) & 0xffffe000u); }

//@ tf_tf32_fma
TF_INLINE float tf_tf32_fma(float a, float b, float c) { return tf_tf32_nearest(a) * tf_tf32_nearest(b) + c; }

//@ tf_tf32_low_fma
// As a warpgroup product reads f32 operands from shared memory.
TF_INLINE float tf_tf32_low_fma(float a, float b, float c) { return tf_tf32_low(a) * tf_tf32_low(b) + c; }

//@ tf_tf32_rest
// What `tf_tf32_low` leaves of a number, rounded so that the unit reads its nearest 11 bits.
TF_INLINE float tf_tf32_rest(float x) { return tf_float_of(tf_bits(x - tf_tf32_low(x)) + 0x1000u); }

//@ tf_split_fma
// Operands as sums of two halves each, without the product of the low ones. What is not finite is what the product of high parts is.
TF_INLINE float tf_split_fma(float a, float b, float c) {
  if (!tf_isfinite(a) || !tf_isfinite(b)) return a * b + c;
  float a_high = tf_tf32_nearest(a), b_high = tf_tf32_nearest(b);
  if (!tf_isfinite(a_high)) a_high = tf_tf32_low(a);
  if (!tf_isfinite(b_high)) b_high = tf_tf32_low(b);
  const float high = a_high * b_high;
  if (!tf_isfinite(high)) return high + c;
  return (tf_tf32_low(a - a_high) * b_high + a_high * tf_tf32_low(b - b_high) + c) + high;
}
