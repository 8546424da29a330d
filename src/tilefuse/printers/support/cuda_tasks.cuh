// Kernels of tasks: the next task, waits for counters of other tasks, and accesses to memory that other tasks of the kernel write.

//@ tf_take_task
// The number of the next task, in the first thread. Tasks are taken in their order, so that a task whose turn has come never waits for one
// that no block has. Nobody waits for the number before it is read. An increment: the compiler would sum additions over the lanes of the
// warp first, and then wait for the result at once.
TF_INLINE int tf_take_task(unsigned int* counters) {
  int number = 0;
  if (threadIdx.x == 0) asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0xffffffff;" : "=r"(number) : "l"(counters) : "memory");
  return number;
}

//@ tf_thread_again
// The number of the thread, which the compiler takes for another one in each task: else it keeps addresses of all bodies in registers from
// task to task (a layer of a decode step: 128 registers and spills, 48 without).
TF_INLINE int tf_thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

//@ tf_leave_tasks
// Counts this block as done. The last block sets all counters to zero: no other one touches them any more, and the next kernel finds them as
// this one has. One thread takes tasks, publishes and leaves, so that its release orders all that its block has counted. WORDS: from one
// counter to the next.
template <int WORDS> TF_INLINE void tf_leave_tasks(unsigned int* counters, int num_counters) {
  bool last = false;
  if (threadIdx.x == 0) {
    unsigned int before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], 0xffffffff;" : "=r"(before) : "l"(counters + WORDS) : "memory");
    last = before == gridDim.x - 1u;
  }
  if (!__syncthreads_or(last)) return;
  for (int n = threadIdx.x; n < num_counters; n += blockDim.x) counters[WORDS * n] = 0u;
}

//@ tf_acquired
TF_INLINE unsigned int tf_acquired(const unsigned int* counter) {
  unsigned int value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

//@ tf_await
// Waits until `count` counters have reached a value. One thread polls each; the barrier hands on to the block what it has acquired.
// Source: PTX ISA, memory consistency model: causality order passes barriers.
template <int WORDS> TF_INLINE void tf_await(const unsigned int* counters, int count, unsigned int value) {
  for (int n = threadIdx.x; n < count; n += blockDim.x)
    while (tf_acquired(counters + WORDS * n) < value) {}
  __syncthreads();
}

//@ tf_poll
// One warp polls `count` counters until each has reached a value; a barrier behind it hands on to the block what it has acquired.
template <int WORDS> TF_INLINE void tf_poll(const unsigned int* counters, int count, unsigned int value, int warp) {
  if ((int)threadIdx.x >> 5 != warp) return;
  for (int n = threadIdx.x & 31; n < count; n += 32)
    while (tf_acquired(counters + WORDS * n) < value) {}
}

//@ tf_now_ns
TF_INLINE unsigned long long tf_now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

//@ tf_await_watched
// As tf_await; a wait beyond the limit is told and ends the kernel, and with it the context.
template <int WORDS> TF_INLINE void tf_await_watched(const unsigned int* counters, int count, unsigned int value, int first, int limit_ms,
                                                     const char* body, int number) {
  const unsigned long long begin = tf_now_ns();
  for (int n = threadIdx.x; n < count; n += blockDim.x) {
    unsigned int reached;
    while ((reached = tf_acquired(counters + WORDS * n)) < value) {
      if (tf_now_ns() - begin < limit_ms * 1000000ull) continue;
      printf("tilefuse: task %d (%s) has waited %d ms for counter %d: %u of %u\n", number, body, limit_ms, first + n, reached, value);
      __trap();
    }
  }
  __syncthreads();
}

//@ tf_publish
// Adds one to a counter behind all accesses of the block. The barrier gathers them before the release of one thread, which is cumulative.
// Source: PTX ISA, memory consistency model; red.release.
TF_INLINE void tf_publish(unsigned int* counter) {
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(counter) : "memory");
}

//@ tf_record_task
// Start, end and multiprocessor of a task, for a timeline.
TF_INLINE void tf_record_task(unsigned long long* records, int number, unsigned long long begin_ns) {
  if (threadIdx.x != 0) return;
  unsigned int place;
  asm volatile("mov.u32 %0, %smid;" : "=r"(place));
  records[3 * number] = begin_ns;
  records[3 * number + 1] = tf_now_ns();
  records[3 * number + 2] = place;
}

//@ tf_load_changed tf_word_past_l1
// Loads of memory that other tasks of the kernel write pass the first-level cache, whose lines may be older than the wait.
TF_INLINE unsigned char tf_word_past_l1(const unsigned char* place) { return __ldcg(place); }
TF_INLINE unsigned short tf_word_past_l1(const unsigned short* place) { return __ldcg(place); }
TF_INLINE unsigned int tf_word_past_l1(const unsigned int* place) { return __ldcg(place); }
TF_INLINE uint2 tf_word_past_l1(const uint2* place) { return __ldcg(place); }
TF_INLINE uint4 tf_word_past_l1(const uint4* place) { return __ldcg(place); }
template <class T> TF_INLINE T tf_load_changed(const T* memory) {
  const tf_word_t<sizeof(T)> word = tf_word_past_l1(reinterpret_cast<const tf_word_t<sizeof(T)>*>(memory));
  T value;
  memcpy(&value, &word, sizeof value);
  return value;
}

//@ tf_vector_load_changed
template <int WIDTH, class T> TF_INLINE void tf_vector_load_changed(T* registers, const T* memory) {
  using Word = tf_word_t<WIDTH * sizeof(T)>;
  constexpr int words = WIDTH * sizeof(T) / sizeof(Word), each = WIDTH / words;
#pragma unroll
  for (int n = 0; n < words; ++n) {
    const Word word = tf_word_past_l1(reinterpret_cast<const Word*>(memory + n * each));
    memcpy(registers + n * each, &word, sizeof word);
  }
}

//@ tf_copy_changed
// A copy to shared memory that cp.async would take through the first-level cache: it passes a register.
template <int BYTES, class T> TF_INLINE void tf_copy_changed(T* shared, const T* source) {
  using Word = tf_word_t<BYTES>;
  *reinterpret_cast<Word*>(shared) = tf_word_past_l1(reinterpret_cast<const Word*>(source));
}
