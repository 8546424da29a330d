// 8-bit floats as storage types for CUDA C++.

//@ tf_f8e4m3
struct tf_f8e4m3 {
  unsigned char bits;
  tf_f8e4m3() = default;
  TF_INLINE explicit tf_f8e4m3(float a) : bits(tf_narrow_f8<3, 7, 0x7e, 0x7e, 0x7f>(a)) {}
  static TF_INLINE tf_f8e4m3 of_bits(unsigned char bits) { tf_f8e4m3 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_f8e4m3 a) { return tf_widen_f8<3, 7, 0x7f, 0x7f>(a.bits); }

//@ tf_f8e5m2
struct tf_f8e5m2 {
  unsigned char bits;
  tf_f8e5m2() = default;
  TF_INLINE explicit tf_f8e5m2(float a) : bits(tf_narrow_f8<2, 15, 0x7b, 0x7c, 0x7e>(a)) {}
  static TF_INLINE tf_f8e5m2 of_bits(unsigned char bits) { tf_f8e5m2 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_f8e5m2 a) { return tf_widen_f8<2, 15, 0x7c, 0x7d>(a.bits); }
