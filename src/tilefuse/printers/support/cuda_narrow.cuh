// Functions of f32 for data of 16 bits or fewer: hardware instructions and short polynomials, without branches. Relative error below
// 2^-16 where the result is not below 2^-124, special values as the exact functions; tests/unit/templates/test_narrow.py compiles this
// file with the instructions at the far end of their error. Coefficients: own weighted least-squares fits (Lawson's iteration towards
// the least largest error) in f64, rounded to f32; the fits are in tests/unit/templates/fit_narrow.py.

//@ tf_narrow_exp2
TF_INLINE float tf_narrow_exp2(float a) { return tf_hardware_exp2(a); }

//@ tf_narrow_exp
TF_INLINE float tf_narrow_exp(float a) { return tf_hardware_exp2(a * 1.4426950408889634f); }

//@ tf_narrow_scaled_exp
// factor exp(scale a), constants as part of the exponent.
TF_INLINE float tf_narrow_scaled_exp(float a, float scale, float, float log2_factor) {
  return tf_hardware_exp2(fmaf(a, scale * 1.4426950408889634f, log2_factor));
}

//@ tf_narrow_expm1
// Below 1/4 the difference would lose digits: a polynomial there.
TF_INLINE float tf_narrow_expm1(float a) {
  const float far = tf_narrow_exp(a) - 1.0f;
  const float near = fmaf(fmaf(fmaf(0.04163699224591255f, a, 0.1670982539653778f), a, 0.5000044703483582f) * a, a, a);
  return fabsf(a) < 0.25f ? near : far;
}

//@ tf_narrow_log1p
// Near 0 the hardware's logarithm is exact to 2^-22 of 1 only: a polynomial there.
TF_INLINE float tf_narrow_log1p(float a) {
  const float far = tf_hardware_log2(1.0f + a) * 0.6931471805599453f;
  const float near = fmaf(fmaf(0.33349692821502686f, a, -0.5001829266548157f) * a, a, a);
  return fabsf(a) < 0.03125f ? near : far;
}

//@ tf_narrow_log
TF_INLINE float tf_narrow_log(float a) {
  const float far = tf_hardware_log2(a) * 0.6931471805599453f, b = a - 1.0f;
  const float near = fmaf(fmaf(0.33349692821502686f, b, -0.5001829266548157f) * b, b, b);
  return fabsf(b) < 0.03125f ? near : far;
}

//@ tf_narrow_log2
TF_INLINE float tf_narrow_log2(float a) {
  const float far = tf_hardware_log2(a), b = a - 1.0f;
  const float near = fmaf(fmaf(0.33349692821502686f, b, -0.5001829266548157f) * b, b, b) * 1.4426950408889634f;
  return fabsf(b) < 0.03125f ? near : far;
}

//@ tf_narrow_reciprocal
TF_INLINE float tf_narrow_reciprocal(float a) { return tf_hardware_reciprocal(a); }

//@ tf_narrow_div
TF_INLINE float tf_narrow_div(float a, float b) { return tf_hardware_div(a, b); }

//@ tf_narrow_sqrt
TF_INLINE float tf_narrow_sqrt(float a) { return tf_hardware_sqrt(a); }

//@ tf_narrow_sigmoid
TF_INLINE float tf_narrow_sigmoid(float a) { return tf_hardware_reciprocal_normal(1.0f + tf_hardware_exp2(a * -1.4426950408889634f)); }

//@ tf_narrow_tanh
// 1 - 2 / (1 + exp(2a)), where that difference has digits enough, else a polynomial.
TF_INLINE float tf_narrow_tanh(float a) {
  const float far = fmaf(-2.0f, tf_hardware_reciprocal_normal(1.0f + tf_hardware_exp2(a * 2.8853900817779268f)), 1.0f);
  const float near = fmaf(a * a, -0.33161661028862f, 1.0f) * a;
  return fabsf(a) < 0.125f ? near : far;
}

//@ tf_narrow_one_plus_tanh
// factor (1 + tanh(scale a)) = 2 factor / (1 + exp(-2 scale a)): where tanh is near -1 it is closer to 1 + tanh than a sum would be.
// Constants are part of the coefficients.
TF_INLINE float tf_narrow_one_plus_tanh(float a, float scale, float factor, float) {
  return 2.0f * factor * tf_hardware_reciprocal_normal(1.0f + tf_hardware_exp2(a * (scale * -2.8853900817779268f)));
}

//@ tf_narrow_erfc_of_size
// factor erfc(scale size) = 2^(size * polynomial(size) + log2(factor)) for size >= 0 and constants scale and factor: relative error below
// 2^-18 down to results of 10^-5, below 3 * 10^-11 absolute beyond. The leading coefficient is negative, so that it goes to 0 without a
// clamp.
TF_INLINE float tf_narrow_erfc_of_size(float size, float scale, float log2_factor) {
  const float square = scale * scale, fourth = square * square;
  float p = fmaf(-1.3592192640993744e-05f * (fourth * square * scale), size, 0.0004124645784031600f * (fourth * square));
  p = fmaf(p, size, -0.004912578035145998f * (fourth * scale));
  p = fmaf(p, size, 0.03327422961592674f * fourth);
  p = fmaf(p, size, -0.15178541839122772f * (square * scale));
  p = fmaf(p, size, -0.9173740148544312f * square);
  p = fmaf(p, size, -1.6280205249786377f * scale);
  return tf_hardware_exp2(fmaf(p, size, log2_factor));
}

//@ tf_narrow_one_plus_erf
// factor (1 + erf(scale a)) = factor erfc(-scale a), with the relative error of that also where erf is near -1.
TF_INLINE float tf_narrow_one_plus_erf(float a, float scale, float factor, float log2_factor) {
  const float tail = tf_narrow_erfc_of_size(fabsf(a), scale, log2_factor);
  return a < 0.0f ? tail : 2.0f * factor - tail;
}

//@ tf_narrow_erf
// 1 - erfc has no digits near 0: a polynomial there.
TF_INLINE float tf_narrow_erf(float a) {
  const float far = copysignf(1.0f - tf_narrow_erfc_of_size(fabsf(a), 1.0f, 0.0f), a), square = a * a;
  const float near = fmaf(fmaf(0.10802458971738815f, square, -0.37590646743774414f), square, 1.1283776760101318f) * a;
  return fabsf(a) < 0.35f ? near : far;
}

//@ tf_narrow_random_normal
// As tf_random_normal, within 2^-17 absolute: enough for a random number, whose relative error near 0 means nothing.
template <class Block> TF_INLINE float tf_narrow_random_normal(long long seed, Block block, int place) {
  const tf_philox_words words = tf_philox_block(seed, block);
  const float u = tf_uniform_of(place & 2 ? words.word[2] : words.word[0]), v = tf_uniform_of(place & 2 ? words.word[3] : words.word[1]);
  // The hardware's logarithm may be above 0 just below 1.
  const float radius = tf_hardware_sqrt(fmaxf(tf_hardware_log2(1.0f - u) * -1.3862943611198906f, 0.0f));
  const float angle = (v - 0.5f) * 6.283185307179586f;  // half a turn off: the instructions are best between -pi and pi
  return radius * -(place & 1 ? tf_hardware_sin(angle) : tf_hardware_cos(angle));
}
TF_INLINE float tf_narrow_random_normal(long long seed, long long counter) {
  return tf_narrow_random_normal(seed, counter >> 2, (int)(counter & 3));
}
