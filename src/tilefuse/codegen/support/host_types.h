// Narrow floats as storage types, special constants, and bit casts for host C++ (g++ 12 or newer, clang++ 15 or newer).

//@ TF_INLINE
#define TF_INLINE static inline __attribute__((always_inline))

//@ tf_index_div
TF_INLINE int tf_index_div(int value, int by) { return value / by; }
TF_INLINE long long tf_index_div(long long value, long long by) { return value / by; }

//@ tf_index_rem
TF_INLINE int tf_index_rem(int value, int by) { return value % by; }
TF_INLINE long long tf_index_rem(long long value, long long by) { return value % by; }

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

//@ tf_f16
struct tf_f16 {
  _Float16 value;
  tf_f16() = default;
  explicit inline __attribute__((always_inline)) tf_f16(float a) : value((_Float16)a) {}
  TF_INLINE tf_f16 of_bits(unsigned short bits) { tf_f16 a; __builtin_memcpy(&a.value, &bits, sizeof bits); return a; }
};
TF_INLINE float tf_float(tf_f16 a) { return (float)a.value; }

//@ tf_bf16
struct tf_bf16 {
  unsigned short bits;
  tf_bf16() = default;
  explicit inline __attribute__((always_inline)) tf_bf16(float a) {
    const unsigned int wide = tf_bits(a);
    const unsigned int rounded = wide + 0x7fffu + ((wide >> 16) & 1u);
    bits = (unsigned short)(((wide & 0x7fffffffu) > 0x7f800000u ? wide | 0x400000u : rounded) >> 16);
  }
  TF_INLINE tf_bf16 of_bits(unsigned short bits) { tf_bf16 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_bf16 a) { return tf_float_of((unsigned int)a.bits << 16); }
