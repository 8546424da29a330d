// Counter-based random numbers: the same bits as ir/meaning.py.
// Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", figure 2 and table 2.

//@ tf_philox
struct tf_philox_words { unsigned int first, second; };
TF_INLINE tf_philox_words tf_philox(long long seed, long long counter) {
  unsigned int k0 = (unsigned int)seed, k1 = (unsigned int)((unsigned long long)seed >> 32);
  unsigned int c0 = (unsigned int)counter, c1 = (unsigned int)((unsigned long long)counter >> 32), c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0;
    c1 = (unsigned int)p1;
    c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1;
    c3 = (unsigned int)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return tf_philox_words{c0, c1};
}

//@ tf_uniform_of
TF_INLINE float tf_uniform_of(unsigned int word) { return (float)(word >> 8) * 5.9604644775390625e-8f; }  // 2^-24

//@ tf_random_bits
TF_INLINE unsigned int tf_random_bits(long long seed, long long counter) { return tf_philox(seed, counter).first; }

//@ tf_random_uniform
TF_INLINE float tf_random_uniform(long long seed, long long counter) { return tf_uniform_of(tf_philox(seed, counter).first); }

//@ tf_random_normal
TF_INLINE float tf_random_normal(long long seed, long long counter) {
  const tf_philox_words words = tf_philox(seed, counter);
  const float u = tf_uniform_of(words.first), v = tf_uniform_of(words.second);
#if defined(__CUDACC__)
  return sqrtf(-2.0f * logf(1.0f - u)) * cospif(2.0f * v);  // both arguments are exact in f32
#else
  return (float)(sqrt(-2.0 * log(1.0 - (double)u)) * cos(6.283185307179586 * (double)v));
#endif
}
