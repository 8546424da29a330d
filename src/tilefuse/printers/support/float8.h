// Conversions of 8-bit floats by integer arithmetic, for both targets.

//@ tf_narrow_f8
// Nearest even from float to an 8-bit float of MANTISSA explicit bits and exponent bias BIAS; what rounds beyond LARGEST becomes
// BEYOND, NaN becomes NOT_A_NUMBER (both without the sign bit, which is kept).
template <int MANTISSA, int BIAS, unsigned LARGEST, unsigned BEYOND, unsigned NOT_A_NUMBER> TF_INLINE unsigned char tf_narrow_f8(float a) {
  const unsigned wide = tf_bits(a);
  const unsigned sign = (wide >> 24) & 0x80u;
  const unsigned size = wide & 0x7fffffffu;
  const int exponent = (int)(size >> 23) - 127 + BIAS;  // biased for the result
  // A result below the normal range keeps fewer bits: the mantissa with its leading one moves further right.
  const int shift = exponent > 0 ? 23 - MANTISSA : 24 - MANTISSA - exponent;
  const unsigned mantissa = (size & 0x7fffffu) | (size >> 23 ? 0x800000u : 0u);
  const unsigned safe = shift > 25 ? 25u : (unsigned)shift;
  const unsigned kept = mantissa >> safe;
  const unsigned lost = mantissa & ((1u << safe) - 1u);
  const unsigned half = 1u << (safe - 1u);
  const unsigned up = lost > half || (lost == half && (kept & 1u)) ? 1u : 0u;
  // The leading one of a normal number adds one to the exponent field, hence exponent - 1; a carry moves on to the next binade.
  const unsigned result = kept + up + (exponent > 0 ? (unsigned)(exponent - 1) << MANTISSA : 0u);
  const unsigned number = exponent > 2 * BIAS + 1 || result > LARGEST ? BEYOND : result;
  return (unsigned char)(sign | (size > 0x7f800000u ? NOT_A_NUMBER : number));
}

//@ tf_widen_f8
// Exact value of an 8-bit float; patterns from FIRST_NAN on (sign dropped) are NaN, INFINITE is infinity unless it is FIRST_NAN.
template <int MANTISSA, int BIAS, unsigned INFINITE, unsigned FIRST_NAN> TF_INLINE float tf_widen_f8(unsigned char bits) {
  const unsigned size = bits & 0x7fu;
  const unsigned sign = (unsigned)(bits & 0x80u) << 24;
  const unsigned mantissa = size & ((1u << MANTISSA) - 1u);
  const unsigned exponent = size >> MANTISSA;
  const float subnormal = (float)mantissa * tf_float_of((unsigned)(127 + 1 - BIAS - MANTISSA) << 23);
  const unsigned normal = ((exponent + 127u - BIAS) << 23) | (mantissa << (23 - MANTISSA));
  const unsigned finite = exponent ? normal : tf_bits(subnormal);
  return tf_float_of(sign | (size >= FIRST_NAN ? 0x7fc00000u : size == INFINITE ? 0x7f800000u : finite));
}
