// Scratch memory, atomic combinations and lane numbers for host C++.

//@ tf_scratch
// Memory of one executor: shared memory of its block, registers that live across meeting points.
struct tf_scratch {
  unsigned char* memory;
  explicit tf_scratch(unsigned long bytes) : memory(static_cast<unsigned char*>(std::aligned_alloc(128, bytes))) {}
  ~tf_scratch() { std::free(memory); }
  tf_scratch(const tf_scratch&) = delete;
  tf_scratch& operator=(const tf_scratch&) = delete;
};

//@ tf_slots
// The fillings and uses of a ring's slots. The host executes them in order, so that nothing waits.
struct tf_slots {
  long long filled = 0, used = 0;
  void fill() {}
  void full() { ++filled; }
  void use() {}
  void leave() { ++used; }
  void release(int) {}
  void settled() {}
  void finish() {}
};

//@ tf_copy
// A vector access. As memcpy, compilers make 16-byte moves of it, and a 32-byte load of what two of them stored waits until both have left
// the processor's store buffer; moves as wide as the loops around keep the array in registers (a bias and its sum: 10 times as fast). The
// same holds for 64-byte loops and 32-byte moves (AMD EPYC, one core: layer norm of 1024 x 256 f32 157 us -> 78, a copy of 1 MiB 56 -> 31).
template <int BYTES> TF_INLINE void tf_copy(void* to, const void* from) {
#if defined(__AVX512F__)
  constexpr int piece = BYTES % 64 == 0 ? 64 : BYTES % 32 == 0 ? 32 : BYTES % 16 == 0 ? 16 : 0;
#elif defined(__AVX__)
  constexpr int piece = BYTES % 32 == 0 ? 32 : BYTES % 16 == 0 ? 16 : 0;
#else
  constexpr int piece = BYTES % 16 == 0 ? 16 : 0;
#endif
  if constexpr (piece != 0) {
    typedef unsigned char Piece __attribute__((vector_size(piece), aligned(1), may_alias));
    for (int n = 0; n < BYTES / piece; ++n) static_cast<Piece*>(to)[n] = static_cast<const Piece*>(from)[n];
  } else {
    std::memcpy(to, from, BYTES);
  }
}

//@ tf_vector_load
template <int WIDTH, class T> TF_INLINE void tf_vector_load(T* registers, const T* memory) {
  for (int n = 0; n < WIDTH; ++n) registers[n] = memory[n];
}

//@ tf_vector_store
template <int WIDTH, class T> TF_INLINE void tf_vector_store(T* memory, const T* registers) {
  for (int n = 0; n < WIDTH; ++n) memory[n] = registers[n];
}

//@ tf_lane_xor
// The thread whose register a shuffle reads: lanes form groups of `width`; outside the group a lane keeps its own.
TF_INLINE int tf_lane_xor(int thread, int amount, int width, int threads) {
  const int other = thread ^ amount;
  return other / width == thread / width && other < threads ? other : thread;
}

//@ tf_lane_up
TF_INLINE int tf_lane_up(int thread, int amount, int width, int) { return thread % width >= amount ? thread - amount : thread; }

//@ tf_lane_down
TF_INLINE int tf_lane_down(int thread, int amount, int width, int threads) {
  return thread % width + amount < width && thread + amount < threads ? thread + amount : thread;
}

//@ tf_lane_lane
TF_INLINE int tf_lane_lane(int thread, int lane, int width, int threads) {
  const int other = thread / width * width + lane % width;
  return other < threads ? other : thread;
}

//@ tf_last_block
// Counts arrivals; the last one finds all earlier writes of the others and sets the counter back to 0.
TF_INLINE bool tf_last_block(void* counter, unsigned int count) {
  unsigned int* const arrivals = static_cast<unsigned int*>(counter);
  const bool last = __atomic_fetch_add(arrivals, 1u, __ATOMIC_ACQ_REL) == count - 1u;
  if (last) __atomic_store_n(arrivals, 0u, __ATOMIC_RELAXED);
  return last;
}

//@ tf_atomic_update
template <int BYTES> struct tf_word { using type = unsigned long long; };
template <> struct tf_word<4> { using type = unsigned int; };
template <> struct tf_word<2> { using type = unsigned short; };
template <> struct tf_word<1> { using type = unsigned char; };
template <class T, class Combine> TF_INLINE void tf_atomic_update(T* memory, T value, Combine combine) {
  using Word = typename tf_word<sizeof(T)>::type;
  Word* const word = reinterpret_cast<Word*>(memory);
  Word seen = __atomic_load_n(word, __ATOMIC_RELAXED), desired;
  do {
    T old;
    std::memcpy(&old, &seen, sizeof(T));
    const T fresh = combine(old, value);
    std::memcpy(&desired, &fresh, sizeof(T));
  } while (!__atomic_compare_exchange_n(word, &seen, desired, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

//@ tf_wide
// The arithmetic value of an element: narrow floats through f32.
template <class T> TF_INLINE T tf_wide(T a, long) { return a; }
template <class T> TF_INLINE auto tf_wide(T a, int) -> decltype(tf_float(a)) { return tf_float(a); }

//@ tf_atomic_sum
template <class T> TF_INLINE void tf_atomic_sum(T* memory, T value) {
  tf_atomic_update(memory, value, [](T a, T b) { return T(tf_wide(a, 0) + tf_wide(b, 0)); });
}

//@ tf_atomic_prod
template <class T> TF_INLINE void tf_atomic_prod(T* memory, T value) {
  tf_atomic_update(memory, value, [](T a, T b) { return T(tf_wide(a, 0) * tf_wide(b, 0)); });
}

//@ tf_atomic_max
template <class T> TF_INLINE void tf_atomic_max(T* memory, T value) {
  tf_atomic_update(memory, value, [](T a, T b) { return T(tf_maximum(tf_wide(a, 0), tf_wide(b, 0))); });
}

//@ tf_atomic_min
template <class T> TF_INLINE void tf_atomic_min(T* memory, T value) {
  tf_atomic_update(memory, value, [](T a, T b) { return T(tf_minimum(tf_wide(a, 0), tf_wide(b, 0))); });
}

//@ tf_index_fault tf_in_range
// The first index out of range by parameter and place, so that the report does not depend on which thread met it first.
struct tf_index_fault {
  long long value = 0, extent = 0, place = 0;
  int found = 0, of = 0, dimension = 0, source = 0, wraps = 0;
  __attribute__((noinline, cold)) void note(long long index, long long limit, int of_parameter, int axis, int read_from, long long where,
                                            bool from_end) {
    #pragma omp critical(tf_index_fault)
    if (!found || read_from < source || (read_from == source && where < place)) {
      value = from_end && index < 0 ? index - limit : index, extent = limit, place = where;
      found = 1, of = of_parameter, dimension = axis, source = read_from, wraps = from_end;
    }
  }
  // The status of a kernel that met one; the report holds this structure.
  int tell(char* report, long size) const {
    if (report && size >= (long)sizeof(*this)) std::memcpy(report, this, sizeof(*this));
    return -1;
  }
};
TF_INLINE long long tf_in_range(long long index, long long extent, tf_index_fault& fault, int of, int dimension, int source, long long place,
                                bool wraps, bool kept) {
  if (__builtin_expect((unsigned long long)index < (unsigned long long)extent, 1)) return index;
  fault.note(index, extent, of, dimension, source, place, wraps);
  return kept ? index : 0;
}
