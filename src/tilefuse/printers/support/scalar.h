// Scalar functions of the operator table for both targets, in C++ that each compiles on its own. Their meaning is stated in
// ir/ops.py (SUPPORT_FUNCTIONS) and ir/meaning.py; none traps on any input.

//@ tf_index_floordiv
template <class Index> TF_INLINE Index tf_index_floordiv(Index value, int by) {
  const Index quotient = value / by;
  return quotient - (value % by < 0);
}

//@ tf_index_floormod
template <class Index> TF_INLINE Index tf_index_floormod(Index value, int by) {
  const Index remainder = value % by;
  return remainder < 0 ? remainder + by : remainder;
}

//@ tf_wide_div tf_wide_rem tf_wide_floordiv tf_wide_floormod
// As tf_index_div and its siblings, by a number beyond 32 bits.
TF_INLINE long long tf_wide_div(long long value, long long by) { return value / by; }
TF_INLINE long long tf_wide_rem(long long value, long long by) { return value % by; }
TF_INLINE long long tf_wide_floordiv(long long value, long long by) { return value / by - (value % by < 0); }
TF_INLINE long long tf_wide_floormod(long long value, long long by) { return value % by + (value % by < 0 ? by : 0); }

//@ tf_isnan
TF_INLINE bool tf_isnan(float a) { return a != a; }
TF_INLINE bool tf_isnan(double a) { return a != a; }

//@ tf_isinf
TF_INLINE bool tf_isinf(float a) { return (tf_bits(a) & 0x7fffffffu) == 0x7f800000u; }
TF_INLINE bool tf_isinf(double a) { return (tf_bits(a) & 0x7fffffffffffffffull) == 0x7ff0000000000000ull; }

//@ tf_isfinite
TF_INLINE bool tf_isfinite(float a) { return (tf_bits(a) & 0x7fffffffu) < 0x7f800000u; }
TF_INLINE bool tf_isfinite(double a) { return (tf_bits(a) & 0x7fffffffffffffffull) < 0x7ff0000000000000ull; }

//@ tf_signbit
TF_INLINE bool tf_signbit(float a) { return tf_bits(a) >> 31; }
TF_INLINE bool tf_signbit(double a) { return tf_bits(a) >> 63; }

//@ tf_abs
TF_INLINE float tf_abs(float a) { return fabsf(a); }
TF_INLINE double tf_abs(double a) { return fabs(a); }
TF_INLINE int tf_abs(int a) { return a < 0 ? (int)(0u - (unsigned int)a) : a; }
TF_INLINE long long tf_abs(long long a) { return a < 0 ? (long long)(0ull - (unsigned long long)a) : a; }
TF_INLINE unsigned int tf_abs(unsigned int a) { return a; }
TF_INLINE unsigned long long tf_abs(unsigned long long a) { return a; }

//@ tf_sign
template <class T> TF_INLINE T tf_sign(T a) { return a != a ? a : (T)((a > (T)0) - (a < (T)0)); }

//@ tf_minimum
template <class T> TF_INLINE T tf_minimum(T a, T b) { return a < b || a != a ? a : b; }
#if defined(__CUDA_ARCH__)
TF_INLINE float tf_minimum(float a, float b) {
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
}
#endif

//@ tf_maximum
template <class T> TF_INLINE T tf_maximum(T a, T b) { return a > b || a != a ? a : b; }
#if defined(__CUDA_ARCH__)
TF_INLINE float tf_maximum(float a, float b) {
  float greatest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greatest) : "f"(a), "f"(b));
  return greatest;
}
#endif

//@ tf_fmin
template <class T> TF_INLINE T tf_fmin(T a, T b) { return a < b || b != b ? a : b; }
#if defined(__CUDA_ARCH__)
TF_INLINE float tf_fmin(float a, float b) { return fminf(a, b); }
#endif

//@ tf_fmax
template <class T> TF_INLINE T tf_fmax(T a, T b) { return a > b || b != b ? a : b; }
#if defined(__CUDA_ARCH__)
TF_INLINE float tf_fmax(float a, float b) { return fmaxf(a, b); }
#endif

//@ tf_truncdiv
TF_INLINE int tf_truncdiv(int a, int b) { return b == 0 ? 0 : b == -1 ? (int)(0u - (unsigned int)a) : a / b; }
TF_INLINE long long tf_truncdiv(long long a, long long b) {
  return b == 0 ? 0 : b == -1 ? (long long)(0ull - (unsigned long long)a) : a / b;
}
TF_INLINE unsigned int tf_truncdiv(unsigned int a, unsigned int b) { return b == 0 ? 0 : a / b; }
TF_INLINE unsigned long long tf_truncdiv(unsigned long long a, unsigned long long b) { return b == 0 ? 0 : a / b; }

//@ tf_fmod
TF_INLINE int tf_fmod(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
TF_INLINE long long tf_fmod(long long a, long long b) { return b == 0 || b == -1 ? 0 : a % b; }
TF_INLINE unsigned int tf_fmod(unsigned int a, unsigned int b) { return b == 0 ? 0 : a % b; }
TF_INLINE unsigned long long tf_fmod(unsigned long long a, unsigned long long b) { return b == 0 ? 0 : a % b; }

//@ tf_floordiv
template <class I> TF_INLINE I tf_floordiv(I a, I b) {
  const I remainder = tf_fmod(a, b);
  return tf_truncdiv(a, b) - (I)(remainder != 0 && (remainder < 0) != (b < 0));
}
TF_INLINE float tf_floordiv(float a, float b) {
  if (b == 0) return a / b;
  const float remainder = fmodf(a, b);
  float quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) quotient -= 1.0f;
  if (quotient == 0) return copysignf(0.0f, a / b);
  const float down = floorf(quotient);
  return quotient - down > 0.5f ? down + 1.0f : down;
}
TF_INLINE double tf_floordiv(double a, double b) {
  if (b == 0) return a / b;
  const double remainder = fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) quotient -= 1.0;
  if (quotient == 0) return copysign(0.0, a / b);
  const double down = floor(quotient);
  return quotient - down > 0.5 ? down + 1.0 : down;
}

//@ tf_mod
template <class I> TF_INLINE I tf_mod(I a, I b) {
  const I remainder = tf_fmod(a, b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
TF_INLINE float tf_mod(float a, float b) {
  const float remainder = fmodf(a, b);
  if (remainder == 0) return copysignf(0.0f, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
TF_INLINE double tf_mod(double a, double b) {
  const double remainder = fmod(a, b);
  if (remainder == 0) return copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

//@ tf_pow
// Repeated squaring in the unsigned type, which wraps.
template <class I, class U> TF_INLINE I tf_pow_as(I a, I b) {
  if (b < 0) return a == 1 ? 1 : (U)a + 1u == 0 ? (b & 1 ? a : 1) : 0;
  U power = 1, square = (U)a;
  for (U left = (U)b; left; left >>= 1) {
    if (left & 1) power *= square;
    square *= square;
  }
  return (I)power;
}
TF_INLINE int tf_pow(int a, int b) { return tf_pow_as<int, unsigned int>(a, b); }
TF_INLINE long long tf_pow(long long a, long long b) { return tf_pow_as<long long, unsigned long long>(a, b); }
TF_INLINE unsigned int tf_pow(unsigned int a, unsigned int b) { return tf_pow_as<unsigned int, unsigned int>(a, b); }
TF_INLINE unsigned long long tf_pow(unsigned long long a, unsigned long long b) {
  return tf_pow_as<unsigned long long, unsigned long long>(a, b);
}

//@ tf_shift_left
TF_INLINE int tf_shift_left(int a, int b) { return b >= 0 && b < 32 ? (int)((unsigned int)a << b) : 0; }
TF_INLINE long long tf_shift_left(long long a, long long b) { return b >= 0 && b < 64 ? (long long)((unsigned long long)a << b) : 0; }
TF_INLINE unsigned int tf_shift_left(unsigned int a, unsigned int b) { return b < 32 ? a << b : 0; }
TF_INLINE unsigned long long tf_shift_left(unsigned long long a, unsigned long long b) { return b < 64 ? a << b : 0; }

//@ tf_shift_right
TF_INLINE int tf_shift_right(int a, int b) { return a >> (b >= 0 && b < 32 ? b : 31); }
TF_INLINE long long tf_shift_right(long long a, long long b) { return a >> (b >= 0 && b < 64 ? b : 63); }
TF_INLINE unsigned int tf_shift_right(unsigned int a, unsigned int b) { return b < 32 ? a >> b : 0; }
TF_INLINE unsigned long long tf_shift_right(unsigned long long a, unsigned long long b) { return b < 64 ? a >> b : 0; }

//@ tf_sigmoid
#if defined(__CUDA_ARCH__)
// The hardware's reciprocal is within 1 unit in the last place; the correctly rounded quotient branches for divisors that are not here.
TF_INLINE float tf_sigmoid(float a) { return tf_hardware_reciprocal(1.0f + expf(-a)); }
#else
TF_INLINE float tf_sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }
#endif
TF_INLINE double tf_sigmoid(double a) { return 1.0 / (1.0 + exp(-a)); }

//@ tf_digamma
// Recurrence up to 10, then the asymptotic series; reflection below 0.
// Source: Abramowitz and Stegun, 6.3.5, 6.3.7 and 6.3.18.
TF_INLINE double tf_digamma(double a) {
  const double pi = 3.14159265358979323846;
  if (a == -tf_inf_f64()) return tf_nan_f64();
  if (a == 0) return copysign(tf_inf_f64(), -a);
  double reflected = 0.0;
  if (a < 0) {
    const double fraction = a - floor(a);
    if (fraction == 0) return tf_nan_f64();
    reflected = pi / tan(pi * fraction);
    a = 1.0 - a;
  }
  if (a == tf_inf_f64()) return a;
  double below = 0.0;
  while (a < 10.0) {
    below -= 1.0 / a;
    a += 1.0;
  }
  const double s = 1.0 / (a * a);
  const double tail = s * (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s * (1.0 / 240 - s * (1.0 / 132 - s * (691.0 / 32760 - s / 12))))));
  return below + log(a) - 0.5 / a - tail - reflected;
}
TF_INLINE float tf_digamma(float a) { return (float)tf_digamma((double)a); }

//@ tf_polygamma
// Recurrence up to 10 + order, then the asymptotic series; reflection below 0 where the order is 1.
// Source: Abramowitz and Stegun, 6.4.6, 6.4.7 and 6.4.11.
TF_INLINE double tf_polygamma(double order, double a) {
  const double pi = 3.14159265358979323846;
  const double bernoulli[8] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730, 7.0 / 6, -3617.0 / 510};
  const bool odd = order - 2.0 * floor(order / 2.0) == 1.0;
  if (!(order >= 1.0 && order <= 60.0) || order != floor(order) || a != a || a == -tf_inf_f64()) return tf_nan_f64();
  if (a == tf_inf_f64()) return 0.0;
  if (a <= 0 && a == floor(a)) return odd ? tf_inf_f64() : tf_nan_f64();
  double reflected = 0.0;
  const bool turned = a < 0 && order == 1.0;
  if (turned) {
    const double s = pi / sin(pi * (a - rint(a)));
    reflected = s * s;
    a = 1.0 - a;
  }
  if (a < -4096.0) return tf_nan_f64();
  double factorial = 1.0;
  for (double n = 2.0; n < order; n += 1.0) factorial *= n;
  double total = 0.0;
  while (a < 10.0 + order) {
    total += order * factorial / pow(a, order + 1.0);
    a += 1.0;
  }
  double part = factorial / pow(a, order);
  total += part + part * order / (2.0 * a);
  for (int n = 0; n < 8; ++n) {
    part *= (2 * n + order) * (2 * n + order + 1) / ((2 * n + 1) * (2 * n + 2)) / (a * a);
    total += bernoulli[n] * part;
  }
  if (turned) return reflected - total;
  return odd ? total : -total;
}
TF_INLINE float tf_polygamma(float order, float a) { return (float)tf_polygamma((double)order, (double)a); }

//@ tf_erfinv
// A first guess, then Newton's method on erf; near 1 on erfc, where erf loses its digits.
// Source: the guess is Winitzki 2008, "A handy approximation for the error function and its inverse".
TF_INLINE double tf_erfinv(double a) {
  const double pi = 3.14159265358979323846;
  const double size = fabs(a);
  if (!(size < 1.0)) return size == 1.0 ? copysign(tf_inf_f64(), a) : tf_nan_f64();
  if (size == 0.0) return a;
  const double log_term = log1p(-size * size);
  const double half = 2.0 / (pi * 0.147) + log_term / 2.0;
  double x = sqrt(sqrt(half * half - log_term / 0.147) - half);
  for (int step = 0; step < 6; ++step) {
    const double slope = 2.0 / sqrt(pi) * exp(-x * x);
    if (slope == 0.0) break;
    const double error = size < 0.5 ? erf(x) - size : (1.0 - size) - erfc(x);
    const double change = error / slope;
    x -= change / (1.0 + x * change);
  }
  return copysign(x, a);
}
TF_INLINE float tf_erfinv(float a) { return (float)tf_erfinv((double)a); }
