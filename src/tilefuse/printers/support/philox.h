// Counter-based random numbers: the same bits as ir/meaning.py.
// Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", figure 2 and table 2.

//@ tf_product_halves
// On a device one instruction gives both halves; shifting a 64-bit product made the compiler add zero to every upper half.
TF_INLINE void tf_product_halves(unsigned int a, unsigned int b, unsigned int& low, unsigned int& high) {
#if defined(__CUDACC__)
  asm("{ .reg .u64 product; mul.wide.u32 product, %2, %3; mov.b64 {%0, %1}, product; }" : "=r"(low), "=r"(high) : "r"(a), "r"(b));
#else
  const unsigned long long product = (unsigned long long)a * b;
  low = (unsigned int)product;
  high = (unsigned int)(product >> 32);
#endif
}

//@ tf_philox tf_philox_words tf_philox_block
struct tf_philox_words { unsigned int word[4]; };
TF_INLINE tf_philox_words tf_philox(long long seed, unsigned int low, unsigned int high) {
  unsigned int k0 = (unsigned int)seed, k1 = (unsigned int)((unsigned long long)seed >> 32);
  unsigned int c0 = low, c1 = high, c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    unsigned int low0, high0, low1, high1;
    tf_product_halves(0xD2511F53u, c0, low0, high0);
    tf_product_halves(0xCD9E8D57u, c2, low1, high1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return tf_philox_words{{c0, c1, c2, c3}};
}
// The block of four numbers with this number; an unsigned one has no upper half.
TF_INLINE tf_philox_words tf_philox_block(long long seed, long long block) {
  return tf_philox(seed, (unsigned int)block, (unsigned int)(block >> 32));
}
TF_INLINE tf_philox_words tf_philox_block(long long seed, unsigned int block) { return tf_philox(seed, block, 0u); }

//@ tf_philox_word
// A choice of registers: an index that is not constant would move the words to memory.
TF_INLINE unsigned int tf_philox_word(const tf_philox_words& block, int place) {
  const unsigned int low = place & 1 ? block.word[1] : block.word[0], high = place & 1 ? block.word[3] : block.word[2];
  return place & 2 ? high : low;
}

//@ tf_uniform_of
TF_INLINE float tf_uniform_of(unsigned int word) { return (float)(word >> 8) * 5.9604644775390625e-8f; }  // 2^-24

//@ tf_random_bits
// Counter 4 * block + place. Where the lanes of a vector differ in `place` only, compilers compute the block once for all of them.
template <class Block> TF_INLINE unsigned int tf_random_bits(long long seed, Block block, int place) {
  return tf_philox_word(tf_philox_block(seed, block), place);
}
TF_INLINE unsigned int tf_random_bits(long long seed, long long counter) { return tf_random_bits(seed, counter >> 2, (int)(counter & 3)); }

//@ tf_random_uniform
template <class Block> TF_INLINE float tf_random_uniform(long long seed, Block block, int place) {
  return tf_uniform_of(tf_philox_word(tf_philox_block(seed, block), place));
}
TF_INLINE float tf_random_uniform(long long seed, long long counter) { return tf_random_uniform(seed, counter >> 2, (int)(counter & 3)); }

//@ tf_random_normal
// Two counters share a pair of uniform numbers: the even one takes the cosine, the odd one the sine.
template <class Block> TF_INLINE float tf_random_normal(long long seed, Block block, int place) {
  const tf_philox_words words = tf_philox_block(seed, block);
  const float u = tf_uniform_of(place & 2 ? words.word[2] : words.word[0]), v = tf_uniform_of(place & 2 ? words.word[3] : words.word[1]);
#if defined(__CUDACC__)
  const float radius = sqrtf(-2.0f * logf(1.0f - u));  // the arguments here are exact in f32
  return radius * (place & 1 ? sinpif(2.0f * v) : cospif(2.0f * v));
#else
  const double radius = sqrt(-2.0 * log(1.0 - (double)u)), angle = 6.283185307179586 * (double)v;
  return (float)(radius * (place & 1 ? sin(angle) : cos(angle)));
#endif
}
TF_INLINE float tf_random_normal(long long seed, long long counter) { return tf_random_normal(seed, counter >> 2, (int)(counter & 3)); }
