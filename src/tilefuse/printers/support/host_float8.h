// 8-bit floats as storage types for host C++; copies go by the member, as those of tf_f16.

//@ tf_f8e4m3
struct tf_f8e4m3 {
  unsigned char bits;
  tf_f8e4m3() = default;
  tf_f8e4m3(const tf_f8e4m3& a) : bits(a.bits) {}
  tf_f8e4m3& operator=(const tf_f8e4m3& a) { bits = a.bits; return *this; }
  explicit inline __attribute__((always_inline)) tf_f8e4m3(float a) : bits(tf_narrow_f8<3, 7, 0x7e, 0x7e, 0x7f>(a)) {}
  TF_INLINE tf_f8e4m3 of_bits(unsigned char bits) { tf_f8e4m3 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_f8e4m3 a) { return tf_widen_f8<3, 7, 0x7f, 0x7f>(a.bits); }

//@ tf_f8e5m2
struct tf_f8e5m2 {
  unsigned char bits;
  tf_f8e5m2() = default;
  tf_f8e5m2(const tf_f8e5m2& a) : bits(a.bits) {}
  tf_f8e5m2& operator=(const tf_f8e5m2& a) { bits = a.bits; return *this; }
  explicit inline __attribute__((always_inline)) tf_f8e5m2(float a) : bits(tf_narrow_f8<2, 15, 0x7b, 0x7c, 0x7e>(a)) {}
  TF_INLINE tf_f8e5m2 of_bits(unsigned char bits) { tf_f8e5m2 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_f8e5m2 a) { return tf_widen_f8<2, 15, 0x7c, 0x7d>(a.bits); }
