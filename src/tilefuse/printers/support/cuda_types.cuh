// Narrow floats as storage types, special constants, and bit casts for CUDA C++. Conversions are single instructions where the
// hardware has them. No header is included, so that NVRTC needs no include path.

//@ TF_INLINE
#define TF_INLINE __device__ __forceinline__

//@ tf_index_div
TF_INLINE int tf_index_div(int value, unsigned int by) { return int((unsigned int)value / by); }
TF_INLINE long long tf_index_div(long long value, unsigned int by) { return (long long)((unsigned long long)value / by); }

//@ tf_index_rem
TF_INLINE int tf_index_rem(int value, unsigned int by) { return int((unsigned int)value % by); }
TF_INLINE long long tf_index_rem(long long value, unsigned int by) { return (long long)((unsigned long long)value % by); }

//@ tf_inf_f32
TF_INLINE float tf_inf_f32() { return __int_as_float(0x7f800000); }

//@ tf_nan_f32
TF_INLINE float tf_nan_f32() { return __int_as_float(0x7fc00000); }

//@ tf_inf_f64
TF_INLINE double tf_inf_f64() { return __longlong_as_double(0x7ff0000000000000ll); }

//@ tf_nan_f64
TF_INLINE double tf_nan_f64() { return __longlong_as_double(0x7ff8000000000000ll); }

//@ tf_bits
TF_INLINE unsigned int tf_bits(float a) { return __float_as_uint(a); }
TF_INLINE unsigned long long tf_bits(double a) { return (unsigned long long)__double_as_longlong(a); }

//@ tf_float_of
TF_INLINE float tf_float_of(unsigned int bits) { return __uint_as_float(bits); }

//@ tf_f16
struct tf_f16 {
  unsigned short bits;
  tf_f16() = default;
  TF_INLINE explicit tf_f16(float a) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(a)); }
  static TF_INLINE tf_f16 of_bits(unsigned short bits) { tf_f16 a; a.bits = bits; return a; }
};
TF_INLINE float tf_float(tf_f16 a) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(a.bits));
  return wide;
}

//@ tf_bf16
struct tf_bf16 {
  unsigned short bits;
  tf_bf16() = default;
  TF_INLINE explicit tf_bf16(float a) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(a)); }
  static TF_INLINE tf_bf16 of_bits(unsigned short bits) { tf_bf16 a; a.bits = bits; return a; }
};
// Each use widens the bits again. Of a shift the compiler keeps the wide value for later uses: rows that stay in registers then take twice
// as many, and spilled (rows of 32768 and more ran at 0.6 of a copy on an H200).
TF_INLINE float tf_float(tf_bf16 a) {
  float wide;
  asm("mov.b32 %0, {%1, %2};" : "=f"(wide) : "h"((unsigned short)0), "h"(a.bits));
  return wide;
}

//@ tf_round_pair
// Two neighbouring elements, rounded together. pair: at a multiple of four bytes.
TF_INLINE void tf_round_pair(tf_f16* pair, float first, float second) {
  unsigned int word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  memcpy(pair, &word, sizeof word);
}
TF_INLINE void tf_round_pair(tf_bf16* pair, float first, float second) {
  unsigned int word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  memcpy(pair, &word, sizeof word);
}

//@ tf_held_constant
// A constant that stays in a register: instructions have room for one constant each, and the compiler writes the other one into a register
// again before every use. It cannot know that numbers of multiprocessors have 16 bits.
TF_INLINE unsigned int tf_held_constant(unsigned int value) {
  unsigned int number;
  asm("mov.u32 %0, %%smid;" : "=r"(number));
  return (number >> 16) + value;
}

//@ tf_widen_pair
// A word of registers that holds elements `place`, `place` + 1 of an array of 8-bit integers, and where in it they lie.
template <int COUNT> TF_INLINE unsigned int tf_narrow_word(const signed char (&narrow)[COUNT], int place, unsigned int& selector) {
  unsigned int word = 0;
  if constexpr (COUNT % 4 == 0) {
    memcpy(&word, narrow + (place & ~3), 4);
    selector = place & 2 ? 0x4342u : 0x4140u;
  } else {
    memcpy(&word, narrow + place, 2);
    selector = 0x4140u;
  }
  return word;
}
// Two neighbouring 8-bit integers as elements of 16 bits, exactly; conversions by the unit for these take four times as long.
// pair: at a multiple of four bytes; place: even. 1024 + u has the bits 0x6400 + u in f16, for u = q + 128.
template <int COUNT> TF_INLINE void tf_widen_pair(tf_f16* pair, const signed char (&narrow)[COUNT], int place) {
  unsigned int selector;
  unsigned int word = tf_narrow_word(narrow, place, selector) ^ 0x80808080u;
  word = __byte_perm(word, tf_held_constant(0x64646464u), selector);
  asm("sub.f16x2 %0, %0, %1;" : "+r"(word) : "r"(0x64806480u));
  memcpy(pair, &word, sizeof word);
}
// The mantissa of bf16 holds seven bits: 128 + q % 128 has the bits 0x4300 + q % 128, and the sign makes 128 (0x4300) or 256 (0x4380).
template <int COUNT> TF_INLINE void tf_widen_pair(tf_bf16* pair, const signed char (&narrow)[COUNT], int place) {
  unsigned int selector;
  const unsigned int narrow_word = tf_narrow_word(narrow, place, selector);
  const unsigned int both = __byte_perm(narrow_word, tf_held_constant(0x43434343u), selector);
  unsigned int word = both & 0xff7fff7fu;
  asm("sub.bf16x2 %0, %0, %1;" : "+r"(word) : "r"(both & 0xff80ff80u));
  memcpy(pair, &word, sizeof word);
}

//@ tf_widen_halves
// The low and the high 4 bits of an element of an array of 8-bit integers, in the low bits of the halves of a word.
template <int COUNT> TF_INLINE unsigned int tf_halves_word(const unsigned char (&narrow)[COUNT], int place) {
  unsigned int word = 0;
  if constexpr (COUNT % 4 == 0) memcpy(&word, narrow + (place & ~3), 4);
  else word = narrow[place];
  const unsigned int byte = COUNT % 4 == 0 ? place & 3 : 0;
  return __byte_perm(word, word >> 4, byte | (4 + byte) << 8) & 0x000f000fu;
}
// Both minus OFFSET as elements of 16 bits, exactly. pair: at a multiple of four bytes. 1024 + n has the bits 0x6400 + n in f16, 128 + n
// the bits 0x4300 + n in bf16.
template <int OFFSET, int COUNT> TF_INLINE void tf_widen_halves(tf_f16* pair, const unsigned char (&narrow)[COUNT], int place) {
  unsigned int word = tf_halves_word(narrow, place) | tf_held_constant(0x64006400u);
  asm("sub.f16x2 %0, %0, %1;" : "+r"(word) : "r"(0x64006400u + OFFSET * 0x10001u));
  memcpy(pair, &word, sizeof word);
}
template <int OFFSET, int COUNT> TF_INLINE void tf_widen_halves(tf_bf16* pair, const unsigned char (&narrow)[COUNT], int place) {
  unsigned int word = tf_halves_word(narrow, place) | tf_held_constant(0x43004300u);
  asm("sub.bf16x2 %0, %0, %1;" : "+r"(word) : "r"(0x43004300u + OFFSET * 0x10001u));
  memcpy(pair, &word, sizeof word);
}

//@ tf_scale_pair
// Two neighbouring elements times a scale of their type, each rounded once. pair: at a multiple of four bytes.
TF_INLINE void tf_scale_pair(tf_f16* pair, tf_f16 scale) {
  unsigned int word;
  memcpy(&word, pair, sizeof word);
  asm("mul.f16x2 %0, %0, %1;" : "+r"(word) : "r"((unsigned int)scale.bits * 0x10001u));
  memcpy(pair, &word, sizeof word);
}
TF_INLINE void tf_scale_pair(tf_bf16* pair, tf_bf16 scale) {
  unsigned int word;
  memcpy(&word, pair, sizeof word);
  asm("mul.bf16x2 %0, %0, %1;" : "+r"(word) : "r"((unsigned int)scale.bits * 0x10001u));
  memcpy(pair, &word, sizeof word);
}

//@ tf_hardware_exp2
// The tf_hardware_ functions are single instructions of the special function unit (a few more where operands may be subnormal).
// Source: PTX ISA, ex2.approx, lg2.approx, rcp.approx, div.full, sqrt.approx, sin.approx, cos.approx.
TF_INLINE float tf_hardware_exp2(float a) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}

//@ tf_exp_of_difference
// A term exp(a) of a sum of exponentials, a <= 0 being a difference from the largest. Rounding the product moves a term by |a| 2^-24 of
// itself, as rounding the difference did, and the instruction by 2^-22: against a sum of at least 1 no term is off by more than 2^-22.
TF_INLINE float tf_exp_of_difference(float a) { return tf_hardware_exp2(a * 1.4426950408889634f); }

//@ tf_power_of_difference
// A term 2^a of such a sum, where the exponent is relative to an element near the largest: the instruction is off by 2^-22 of the term.
TF_INLINE float tf_power_of_difference(float a) { return tf_hardware_exp2(a); }

//@ tf_hardware_log2
TF_INLINE float tf_hardware_log2(float a) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}

//@ tf_hardware_reciprocal
TF_INLINE float tf_hardware_reciprocal(float a) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}

//@ tf_hardware_reciprocal_normal
// For operands that are not subnormal; a subnormal result becomes 0.
TF_INLINE float tf_hardware_reciprocal_normal(float a) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}

//@ tf_hardware_div
TF_INLINE float tf_hardware_div(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

//@ tf_hardware_sqrt
TF_INLINE float tf_hardware_sqrt(float a) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}

//@ tf_hardware_sin
TF_INLINE float tf_hardware_sin(float a) {
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}

//@ tf_hardware_cos
TF_INLINE float tf_hardware_cos(float a) {
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(a));
  return y;
}

//@ tf_in_range
// Notes an index out of range for the end of the kernel and goes on with 0 (with the index itself where it is kept). A branch to an
// assertion here would keep loads from passing it: sums of 32 looked-up rows took 293 us instead of 164 on an H200.
TF_INLINE long long tf_in_range(long long index, long long extent, int& fault, int site, bool kept) {
  const bool outside = (unsigned long long)index >= (unsigned long long)extent;
  fault = outside ? site : fault;
  return outside && !kept ? 0 : index;
}

//@ tf_out_of_range
extern "C" __device__ void __assertfail(const char*, const char*, unsigned int, const char*, size_t);
// The text is shown as that of a failed assertion, and the context is lost.
static __device__ __noinline__ void tf_out_of_range(const char* text) {
  __assertfail(text, "index out of range", 0, "tilefuse", 1);
  __trap();
}
