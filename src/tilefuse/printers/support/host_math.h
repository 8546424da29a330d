// Functions of f32 for host C++ without branches, tables or calls, so that loops over them become vector code. In f64 they are the C
// library's. Errors are below 2 units in the last place over all arguments (tests/unit/templates/test_host_math.py); NaN, infinities, zeros
// with their signs and subnormal numbers come out as the C library has them. Source of the coefficients: tests/unit/templates/fit_host.py.

//@ tf_larger
// tf_maximum of floats without a branch: a > b ? a : b is the processor's own maximum, which gives b where either is NaN.
template <class F> TF_INLINE F tf_larger(F a, F b) {
  const F larger = a > b ? a : b;
  return a != a ? a : larger;
}

//@ tf_smaller
template <class F> TF_INLINE F tf_smaller(F a, F b) {
  const F smaller = a < b ? a : b;
  return a != a ? a : smaller;
}

//@ tf_fma_f32
// a * b + c, rounded once where the processor does that at once. What is written with it does not rely on it.
#if defined(__FMA__) || defined(__FP_FAST_FMAF) || defined(__aarch64__)
TF_INLINE float tf_fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
TF_INLINE float tf_fma_f32(float a, float b, float c) { return a * b + c; }
#endif

//@ tf_polynomial
// Horner's rule; coefficients from the highest power down.
TF_INLINE float tf_polynomial(float, float sum) { return sum; }
template <class... Rest> TF_INLINE float tf_polynomial(float x, float sum, float next, Rest... rest) {
  return tf_polynomial(x, tf_fma_f32(sum, x, next), rest...);
}

//@ tf_near_integer
// The integer next to a, |a| < 2^22, both as a number and, in the low bits of `bits`, as an integer in two's complement: adding 1.5 * 2^23
// shifts the fraction out of the significand.
TF_INLINE float tf_near_integer(float a, int* bits) {
  const float shifted = a + 12582912.0f;
  *bits = (int)(tf_bits(shifted) - 0x4b400000u);
  return shifted - 12582912.0f;
}

//@ tf_between
// a, or the bound that it passes; NaN stays.
TF_INLINE float tf_between(float low, float a, float high) {
  const float risen = a < low ? low : a;
  return risen > high ? high : risen;
}

//@ tf_power_of_two
// 2^n for -126 <= n <= 127.
TF_INLINE float tf_power_of_two(int n) { return tf_float_of((unsigned int)(n + 127) << 23); }

//@ tf_times_power
// a * 2^n for -252 <= n <= 254, rounded once: of two halves of n the first keeps a normal.
TF_INLINE float tf_times_power(float a, int n) {
  const int half = n >> 1;
  return a * tf_power_of_two(half) * tf_power_of_two(n - half);
}

//@ tf_exp_reduced
// exp(a) = (1 + result) * 2^n, |result| < 0.42, for |a| < 110.
// Cody and Waite's reduction: 355 / 512 has 9 bits and n 8, so their product is exact; the rest of log 2 follows.
TF_INLINE float tf_exp_reduced(float a, int* n) {
  const float count = tf_near_integer(a * 1.44269504f, n);
  const float r = tf_fma_f32(count, 2.12194440e-4f, tf_fma_f32(count, -0.693359375f, a));
  const float tail = tf_polynomial(r, 0.000197642672f, 0.00139323424f, 0.00833354332f, 0.0416664928f, 0.166666657f, 0.5f);
  return tf_fma_f32(tail * r, r, r);
}

//@ tf_exp
// Beyond the bounds the result is infinite, or rounds to 0.
TF_INLINE float tf_exp(float a) {
  int n;
  const float above_one = tf_exp_reduced(tf_between(-104.0f, a, 89.0f), &n);
  return tf_times_power(1.0f + above_one, n);
}
TF_INLINE double tf_exp(double a) { return std::exp(a); }

//@ tf_exp_of_difference
TF_INLINE float tf_exp_of_difference(float a) { return tf_exp(a); }

//@ tf_expm1
// 2^n (1 + r) - 1 = 2 (2^(n-1) r + (2^(n-1) - 1/2)), whose parts do not overflow before the result does.
TF_INLINE float tf_expm1(float a) {
  int n;
  const float above_one = tf_exp_reduced(tf_between(-18.0f, a, 89.0f), &n);
  const float half_scale = tf_power_of_two(n - 1);
  return __builtin_fabsf(a) < 5e-8f ? a : 2.0f * tf_fma_f32(half_scale, above_one, half_scale - 0.5f);
}
TF_INLINE double tf_expm1(double a) { return std::expm1(a); }

//@ tf_exp2_reduced
// 2^f for |f| <= 1/2.
TF_INLINE float tf_exp2_reduced(float f) {
  const float slope = tf_polynomial(f, 0.00015327835f, 0.00133909984f, 0.00961850304f, 0.0555035956f, 0.240226477f, 0.693147182f);
  return tf_fma_f32(slope, f, 1.0f);
}

//@ tf_exp2
TF_INLINE float tf_exp2(float a) {
  int n;
  const float within = tf_between(-151.0f, a, 129.0f);
  const float whole = tf_near_integer(within, &n);
  return tf_times_power(tf_exp2_reduced(within - whole), n);
}
TF_INLINE double tf_exp2(double a) { return std::exp2(a); }

//@ tf_power_of_difference
TF_INLINE float tf_power_of_difference(float a) { return tf_exp2(a); }

//@ tf_tanh
// Up to 0.55 an odd polynomial; beyond, 1 - 2 / (exp(2 |a|) + 1). From 9.02 on it rounds to 1.
TF_INLINE float tf_tanh(float a) {
  int n;
  const float x = tf_between(0.0f, __builtin_fabsf(a), 9.1f);
  const float above_one = tf_exp_reduced(2.0f * x, &n);
  const float scale = tf_power_of_two(n);
  const float beyond = 1.0f - 2.0f / (tf_fma_f32(scale, above_one, scale) + 1.0f);
  const float square = x * x;
  const float slope = tf_polynomial(square, -0.00616961392f, 0.021000376f, -0.0538357571f, 0.13332437f, -0.333333135f);
  const float near_zero = tf_fma_f32(slope * square, x, x);
  return __builtin_copysignf(x > 0.55f ? beyond : near_zero, a);
}
TF_INLINE double tf_tanh(double a) { return std::tanh(a); }

//@ tf_log_tail
// log(1 + f) - f for sqrt(1/2) - 1 <= f <= sqrt(2) - 1.
TF_INLINE float tf_log_tail(float f) {
  const float cube = tf_polynomial(f, -0.0763643682f, 0.127622202f, -0.131596118f, 0.1420158f, -0.166234091f, 0.200012416f,
                                      -0.250008196f, 0.333333313f);
  return f * f * tf_fma_f32(cube, f, -0.5f);
}

//@ tf_split_power
// a = (1 + result) * 2^n with the result in [sqrt(1/2) - 1, sqrt(2) - 1), for a positive and finite a.
TF_INLINE float tf_split_power(float a, float* n) {
  const bool subnormal = a < 1.17549435e-38f;
  const int bits = (int)tf_bits(subnormal ? a * 8388608.0f : a) - 0x3f3504f3;
  *n = (float)(bits >> 23) - (subnormal ? 23.0f : 0.0f);
  return tf_float_of((unsigned int)((bits & 0x7fffff) + 0x3f3504f3)) - 1.0f;
}

//@ tf_log_special
// The logarithm of numbers that have none in the reals, or an infinite one; of all others `found`.
TF_INLINE float tf_log_special(float a, float found) {
  const float above = a < __builtin_inff() ? found : a;
  return a > 0.0f ? above : a == 0.0f ? -__builtin_inff() : __builtin_nanf("");
}

//@ tf_log
TF_INLINE float tf_log(float a) {
  float n;
  const float f = tf_split_power(a, &n);
  const float tail = tf_fma_f32(n, -2.12194440e-4f, tf_log_tail(f)) + f;
  return tf_log_special(a, tf_fma_f32(n, 0.693359375f, tail));
}
TF_INLINE double tf_log(double a) { return std::log(a); }

//@ tf_log1p
// 1 + a rounds; what it loses, in the scale of the reduced argument, is added there.
TF_INLINE float tf_log1p(float a) {
  float n;
  const float sum = 1.0f + a;
  const float lost = __builtin_fabsf(a) < 1.0f ? a - (sum - 1.0f) : 1.0f - (sum - a);
  const float f = tf_split_power(sum, &n) + lost * tf_power_of_two(-(int)tf_between(-126.0f, n, 126.0f));
  const float tail = tf_fma_f32(n, -2.12194440e-4f, tf_log_tail(f)) + f;
  return __builtin_copysignf(tf_log_special(sum, tf_fma_f32(n, 0.693359375f, tail)), a);
}
TF_INLINE double tf_log1p(double a) { return std::log1p(a); }

//@ tf_log2
// The factor that changes the base in two parts: the first has 11 bits, `high` 12.
TF_INLINE float tf_log2(float a) {
  float n;
  const float f = tf_split_power(a, &n);
  const float high = tf_float_of(tf_bits(f) & 0xfffff000u);
  const float low = tf_fma_f32(tf_log_tail(f), 1.44269504f, tf_fma_f32(f, -1.76052149e-4f, (f - high) * 1.44287109f));
  return tf_log_special(a, tf_fma_f32(high, 1.44287109f, low) + n);
}
TF_INLINE double tf_log2(double a) { return std::log2(a); }

//@ tf_log10
// As tf_log2; the logarithm of 2 has two parts as well.
TF_INLINE float tf_log10(float a) {
  float n;
  const float f = tf_split_power(a, &n);
  const float high = tf_float_of(tf_bits(f) & 0xfffff000u);
  const float rest = tf_fma_f32(f, 2.12450653e-4f, tf_fma_f32(n, 4.60503907e-6f, (f - high) * 0.434082031f));
  const float low = tf_fma_f32(tf_log_tail(f), 0.434294492f, rest);
  return tf_log_special(a, tf_fma_f32(n, 0.301025391f, tf_fma_f32(high, 0.434082031f, low)));
}
TF_INLINE double tf_log10(double a) { return std::log10(a); }

//@ tf_erf
// Up to 0.92 an odd polynomial; beyond, 1 - 2^-p, where the error of the power counts little. From 3.92 on it rounds to 1.
TF_INLINE float tf_erf(float a) {
  const float size = __builtin_fabsf(a);
  const float x = tf_between(0.0f, size, 4.0f);
  const float p = tf_polynomial(x, -0.000282672321f, 0.00439040456f, -0.0320666172f, 0.149941593f, 0.919259608f, 1.62689209f,
                                   0.000282284949f);
  int n;
  const float whole = tf_near_integer(-p, &n);
  const float beyond = tf_fma_f32(tf_exp2_reduced(-p - whole), -tf_power_of_two(n), 1.0f);
  const float square = x * x;
  const float slope = tf_polynomial(square, 7.99664995e-05f, -0.000804976968f, 0.00519240508f, -0.0268557314f, 0.112836257f,
                                            -0.376126289f, 0.128379166f);
  const float near_zero = tf_fma_f32(slope, x, x);
  return __builtin_copysignf(size > 0.92f ? beyond : near_zero, a);
}
TF_INLINE double tf_erf(double a) { return std::erf(a); }
