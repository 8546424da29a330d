// Narrow floats as storage types, special constants, and bit casts for host C++ (g++ 12 or newer, clang++ 15 or newer).

//@ TF_INLINE
#define TF_INLINE static inline __attribute__((always_inline))

//@ tf_index_div
TF_INLINE int tf_index_div(int value, int by) { return value / by; }
template <class BY> TF_INLINE long long tf_index_div(long long value, BY by) { return value / by; }

//@ tf_index_rem
TF_INLINE int tf_index_rem(int value, int by) { return value % by; }
template <class BY> TF_INLINE long long tf_index_rem(long long value, BY by) { return value % by; }

//@ tf_inf_f32
TF_INLINE float tf_inf_f32() { return __builtin_inff(); }

//@ tf_nan_f32
TF_INLINE float tf_nan_f32() { return __builtin_nanf(""); }

//@ tf_inf_f64
TF_INLINE double tf_inf_f64() { return __builtin_inf(); }

//@ tf_nan_f64
TF_INLINE double tf_nan_f64() { return __builtin_nan(""); }

//@ tf_bits
TF_INLINE unsigned int tf_bits(float a) { unsigned int bits; __builtin_memcpy(&bits, &a, sizeof bits); return bits; }
TF_INLINE unsigned long long tf_bits(double a) { unsigned long long bits; __builtin_memcpy(&bits, &a, sizeof bits); return bits; }

//@ tf_float_of
TF_INLINE float tf_float_of(unsigned int bits) { float a; __builtin_memcpy(&a, &bits, sizeof a); return a; }

//@ tf_narrow_f16
// Bits of the nearest half, ties to even, by integers alone: compilers make vector code of that and call a function for _Float16.
TF_INLINE unsigned short tf_narrow_f16(float a) {
  const unsigned int wide = tf_bits(a), size = wide & 0x7fffffffu;
  // The half's bits stand 13 places up until the end: compilers would narrow what is chosen from earlier, and find no vector form then.
  const unsigned int normal = size + 0xc8000fffu + ((size >> 13) & 1u);
  // Adding 0.5 leaves the multiples of 2^-24 that a subnormal half counts in the low bits.
  const unsigned int subnormal = (tf_bits(tf_float_of(size) + 0.5f) - 0x3f000000u) << 13;
  const unsigned int finite = size < 0x38800000u ? subnormal : normal;
  const unsigned int number = size >= 0x477ff000u ? 0x0f800000u : finite;
  return (unsigned short)(((wide >> 16) & 0x8000u) | ((size > 0x7f800000u ? 0x0fc00000u : number) >> 13));
}

//@ tf_widen_f16
// Exact value of a half: its bits in the places of f32, times 2^112 for the difference of the exponents' biases.
TF_INLINE float tf_widen_f16(unsigned short bits) {
  const unsigned int size = (unsigned int)(bits & 0x7fffu) << 13;
  const unsigned int finite = tf_bits(tf_float_of(size) * 5.192296858534828e33f);
  return tf_float_of((unsigned int)(bits & 0x8000u) << 16 | (size >= 0x0f800000u ? size | 0x7f800000u : finite));
}

//@ tf_f16
// Copies go by the member: a copy of the structure keeps a loop from becoming vector code.
struct tf_f16 {
  unsigned short bits;
  tf_f16() = default;
  tf_f16(const tf_f16& a) : bits(a.bits) {}
  tf_f16& operator=(const tf_f16& a) { bits = a.bits; return *this; }
  explicit inline __attribute__((always_inline)) tf_f16(float a) : bits(tf_narrow_f16(a)) {}
  TF_INLINE tf_f16 of_bits(unsigned short bits) { tf_f16 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_f16 a) { return tf_widen_f16(a.bits); }

//@ tf_bf16
// Copies as of tf_f16.
struct tf_bf16 {
  unsigned short bits;
  tf_bf16() = default;
  tf_bf16(const tf_bf16& a) : bits(a.bits) {}
  tf_bf16& operator=(const tf_bf16& a) { bits = a.bits; return *this; }
  explicit inline __attribute__((always_inline)) tf_bf16(float a) {
    const unsigned int wide = tf_bits(a);
    const unsigned int rounded = wide + 0x7fffu + ((wide >> 16) & 1u);
    bits = (unsigned short)(((wide & 0x7fffffffu) > 0x7f800000u ? wide | 0x400000u : rounded) >> 16);
  }
  TF_INLINE tf_bf16 of_bits(unsigned short bits) { tf_bf16 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_bf16 a) { return tf_float_of((unsigned int)a.bits << 16); }
