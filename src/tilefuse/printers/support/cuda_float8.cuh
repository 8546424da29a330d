// 8-bit floats as storage types for CUDA C++. From compute capability 8.9 on one instruction converts; it limits to the largest finite number.
// Source: PTX ISA, cvt of e4m3x2 and e5m2x2.

//@ tf_narrow_e4m3
TF_INLINE unsigned char tf_narrow_e4m3(float a) {
#if __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(a));
  return (unsigned char)pair;
#else
  return tf_narrow_f8<3, 7, 0x7e, 0x7e, 0x7f>(a);
#endif
}

//@ tf_f8e4m3
struct tf_f8e4m3 {
  unsigned char bits;
  tf_f8e4m3() = default;
  TF_INLINE explicit tf_f8e4m3(float a) : bits(tf_narrow_e4m3(a)) {}
  static TF_INLINE tf_f8e4m3 of_bits(unsigned char bits) { tf_f8e4m3 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_f8e4m3 a) { return tf_widen_f8<3, 7, 0x7f, 0x7f>(a.bits); }

//@ tf_narrow_e5m2
// Numbers that round beyond 57344 become infinite.
TF_INLINE unsigned char tf_narrow_e5m2(float a) {
#if __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(a));
  return fabsf(a) >= 61440.0f ? (unsigned char)((pair & 0x80) | 0x7c) : (unsigned char)pair;
#else
  return tf_narrow_f8<2, 15, 0x7b, 0x7c, 0x7e>(a);
#endif
}

//@ tf_f8e5m2
struct tf_f8e5m2 {
  unsigned char bits;
  tf_f8e5m2() = default;
  TF_INLINE explicit tf_f8e5m2(float a) : bits(tf_narrow_e5m2(a)) {}
  static TF_INLINE tf_f8e5m2 of_bits(unsigned char bits) { tf_f8e5m2 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_f8e5m2 a) { return tf_widen_f8<2, 15, 0x7c, 0x7d>(a.bits); }
