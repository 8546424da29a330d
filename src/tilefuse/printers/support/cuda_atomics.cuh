// Atomic combinations for CUDA C++: native instructions where they exist, else compare-and-swap on the containing word.

//@ tf_atomic_update
// *memory = combine(*memory, value), by compare-and-swap on the 32-bit or 64-bit word that holds it.
template <class T, class Combine> TF_INLINE void tf_atomic_update(T* memory, T value, Combine combine) {
  if constexpr (sizeof(T) == 8) {
    unsigned long long* const word = reinterpret_cast<unsigned long long*>(memory);
    unsigned long long seen = *reinterpret_cast<volatile unsigned long long*>(word), expected;
    do {
      expected = seen;
      T old;
      memcpy(&old, &expected, 8);
      const T fresh = combine(old, value);
      unsigned long long desired;
      memcpy(&desired, &fresh, 8);
      seen = atomicCAS(word, expected, desired);
    } while (seen != expected);
  } else {
    const unsigned long long address = reinterpret_cast<unsigned long long>(memory);
    unsigned int* const word = reinterpret_cast<unsigned int*>(address & ~3ull);
    const unsigned int shift = (unsigned int)(address & 3ull) * 8u;
    const unsigned int mask = (sizeof(T) == 4 ? 0xffffffffu : (1u << (sizeof(T) * 8 % 32)) - 1u) << shift;
    unsigned int seen = *reinterpret_cast<volatile unsigned int*>(word), expected;
    do {
      expected = seen;
      const unsigned int lane = (expected & mask) >> shift;
      T old;
      memcpy(&old, &lane, sizeof(T));
      const T fresh = combine(old, value);
      unsigned int desired = 0;
      memcpy(&desired, &fresh, sizeof(T));
      seen = atomicCAS(word, expected, (expected & ~mask) | (desired << shift));
    } while (seen != expected);
  }
}

//@ tf_wide
// The arithmetic value of an element and back: narrow floats through f32.
template <class T> TF_INLINE T tf_wide(T a, long) { return a; }
template <class T> TF_INLINE auto tf_wide(T a, int) -> decltype(tf_float(a)) { return tf_float(a); }

//@ tf_atomic_sum
TF_INLINE void tf_atomic_sum(float* memory, float value) { atomicAdd(memory, value); }
TF_INLINE void tf_atomic_sum(double* memory, double value) { atomicAdd(memory, value); }
TF_INLINE void tf_atomic_sum(int* memory, int value) { atomicAdd(memory, value); }
TF_INLINE void tf_atomic_sum(unsigned int* memory, unsigned int value) { atomicAdd(memory, value); }
TF_INLINE void tf_atomic_sum(unsigned long long* memory, unsigned long long value) { atomicAdd(memory, value); }
TF_INLINE void tf_atomic_sum(long long* memory, long long value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(memory), (unsigned long long)value);
}
template <class T> TF_INLINE void tf_atomic_sum(T* memory, T value) {
  tf_atomic_update(memory, value, [](T a, T b) { return T(tf_wide(a, 0) + tf_wide(b, 0)); });
}

//@ tf_atomic_prod
template <class T> TF_INLINE void tf_atomic_prod(T* memory, T value) {
  tf_atomic_update(memory, value, [](T a, T b) { return T(tf_wide(a, 0) * tf_wide(b, 0)); });
}

//@ tf_atomic_max
TF_INLINE void tf_atomic_max(int* memory, int value) { atomicMax(memory, value); }
TF_INLINE void tf_atomic_max(unsigned int* memory, unsigned int value) { atomicMax(memory, value); }
TF_INLINE void tf_atomic_max(long long* memory, long long value) { atomicMax(memory, value); }
TF_INLINE void tf_atomic_max(unsigned long long* memory, unsigned long long value) { atomicMax(memory, value); }
template <class T> TF_INLINE void tf_atomic_max(T* memory, T value) {
  tf_atomic_update(memory, value, [](T a, T b) { return T(tf_maximum(tf_wide(a, 0), tf_wide(b, 0))); });
}

//@ tf_atomic_min
TF_INLINE void tf_atomic_min(int* memory, int value) { atomicMin(memory, value); }
TF_INLINE void tf_atomic_min(unsigned int* memory, unsigned int value) { atomicMin(memory, value); }
TF_INLINE void tf_atomic_min(long long* memory, long long value) { atomicMin(memory, value); }
TF_INLINE void tf_atomic_min(unsigned long long* memory, unsigned long long value) { atomicMin(memory, value); }
template <class T> TF_INLINE void tf_atomic_min(T* memory, T value) {
  tf_atomic_update(memory, value, [](T a, T b) { return T(tf_minimum(tf_wide(a, 0), tf_wide(b, 0))); });
}
