// Thread-block clusters, distributed shared memory and asynchronous bulk copies (compute capability 9.0 and newer).
// Source of the instruction forms: PTX ISA, sections on barrier.cluster, mapa, mbarrier and cp.async.bulk.

//@ tf_wait_for_earlier_kernel
// Until the kernel ahead in the stream has ended and what it wrote is visible; then the next one may come to stand ready in the
// places that ended blocks leave. In this order, since blocks that came earlier would keep first-level caches from before.
TF_INLINE void tf_wait_for_earlier_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

//@ tf_let_next_kernel_start
TF_INLINE void tf_let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

//@ tf_cluster_rank
TF_INLINE unsigned int tf_cluster_rank() {
  unsigned int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

//@ tf_cluster_barrier
TF_INLINE void tf_cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

//@ tf_cluster_meet
// All blocks of the cluster run and know each other's transaction barriers; a release of all memory would wait for loads on their way.
TF_INLINE void tf_cluster_meet() {
  asm volatile("fence.mbarrier_init.release.cluster;\n\tbarrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

//@ tf_shared_address
TF_INLINE unsigned int tf_shared_address(const void* memory) { return (unsigned int)__cvta_generic_to_shared(memory); }

//@ tf_cluster_address
// The address of `memory` in the shared memory of the block with this rank.
TF_INLINE unsigned int tf_cluster_address(const void* memory, unsigned int rank) {
  unsigned int remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(tf_shared_address(memory)), "r"(rank));
  return remote;
}

//@ tf_cluster_load
template <class T> TF_INLINE T tf_cluster_load(const T* memory, unsigned int rank) {
  const unsigned int remote = tf_cluster_address(memory, rank);
  T value;
  if constexpr (sizeof(T) == 8) {
    unsigned long long word;
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(word) : "r"(remote) : "memory");
    memcpy(&value, &word, 8);
  } else if constexpr (sizeof(T) == 4) {
    unsigned int word;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(remote) : "memory");
    memcpy(&value, &word, 4);
  } else {
    unsigned short word;
    if constexpr (sizeof(T) == 2) asm volatile("ld.shared::cluster.u16 %0, [%1];" : "=h"(word) : "r"(remote) : "memory");
    else asm volatile("ld.shared::cluster.u8 %0, [%1];" : "=h"(word) : "r"(remote) : "memory");
    memcpy(&value, &word, sizeof(T));
  }
  return value;
}

//@ tf_cluster_store
template <class T> TF_INLINE void tf_cluster_store(T* memory, unsigned int rank, T value) {
  const unsigned int remote = tf_cluster_address(memory, rank);
  if constexpr (sizeof(T) == 8) {
    unsigned long long word;
    memcpy(&word, &value, 8);
    asm volatile("st.shared::cluster.u64 [%0], %1;" :: "r"(remote), "l"(word) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    unsigned int word;
    memcpy(&word, &value, 4);
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(remote), "r"(word) : "memory");
  } else {
    unsigned short word = 0;
    memcpy(&word, &value, sizeof(T));
    if constexpr (sizeof(T) == 2) asm volatile("st.shared::cluster.u16 [%0], %1;" :: "r"(remote), "h"(word) : "memory");
    else asm volatile("st.shared::cluster.u8 [%0], %1;" :: "r"(remote), "h"(word) : "memory");
  }
}

//@ tf_bulk_init
// Makes `count` transaction barriers ready, each for one arrival a phase.
TF_INLINE void tf_bulk_init(unsigned long long* barriers, int count) {
  if (threadIdx.x == 0) {
    for (int n = 0; n < count; ++n)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(tf_shared_address(barriers + n)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
}

//@ tf_bulk_announce
// Tells the barrier of bytes that are to come; with `arrive` it also makes the phase's one arrival.
TF_INLINE void tf_bulk_announce(unsigned int arrival, unsigned int num_bytes, bool arrive) {
  if (arrive) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(arrival), "r"(num_bytes) : "memory");
  else asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(arrival), "r"(num_bytes) : "memory");
}

//@ tf_bulk_copy
// Thread 0, or the first of each TEAM threads, announces the bytes, then starts the copy.
template <int TEAM = 1024> TF_INLINE void tf_bulk_copy(void* shared, const void* memory, unsigned int num_bytes, unsigned long long* barrier,
                                                       bool arrive) {
  if (threadIdx.x % TEAM != 0) return;
  const unsigned int target = tf_shared_address(shared), arrival = tf_shared_address(barrier);
  tf_bulk_announce(arrival, num_bytes, arrive);
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(target), "l"(memory), "r"(num_bytes), "r"(arrival) : "memory");
}

//@ tf_bulk_copy_last
// Thread 0, or the first of each TEAM threads, announces the bytes, then starts a copy of lines that leave the second-level cache last: what
// the kernel writes meanwhile leaves it in their place.
template <int TEAM = 1024> TF_INLINE void tf_bulk_copy_last(void* shared, const void* memory, unsigned int num_bytes,
                                                            unsigned long long* barrier, bool arrive) {
  if (threadIdx.x % TEAM != 0) return;
  const unsigned int target = tf_shared_address(shared), arrival = tf_shared_address(barrier);
  tf_bulk_announce(arrival, num_bytes, arrive);
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               :: "r"(target), "l"(memory), "r"(num_bytes), "r"(arrival), "l"(policy) : "memory");
}

//@ tf_bulk_wait
TF_INLINE void tf_bulk_wait(unsigned long long* barrier, unsigned int phase) {
  const unsigned int arrival = tf_shared_address(barrier);
  unsigned int done;
  do {
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done) : "r"(arrival), "r"(phase) : "memory");
  } while (!done);
}

//@ tf_all_bits
// All bits of a register array in one word, for a barrier that waits for its loads.
template <class T, int N> TF_INLINE unsigned int tf_all_bits(const T (&array)[N]) {
  constexpr int words = N * sizeof(T) / 4, rest = N * sizeof(T) % 4;
  unsigned int bits = 0;
  memcpy(&bits, reinterpret_cast<const unsigned char*>(array) + 4 * words, rest);
#pragma unroll
  for (int n = 0; n < words; ++n) {
    unsigned int word;
    memcpy(&word, reinterpret_cast<const unsigned char*>(array) + 4 * n, 4);
    bits |= word;
  }
  return bits;
}

//@ tf_block_barrier_after
// A block barrier that no thread reaches before `bits` are there. A plain one orders loads only before accesses of the block's threads:
// an asynchronous copy started behind it was seen to overtake loads that waited behind stores of another block (H200).
TF_INLINE void tf_block_barrier_after(unsigned int bits) {
  unsigned int count;  // nobody asks for it: counting makes the barrier read the bits
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tbarrier.cta.red.popc.aligned.u32 %0, 0, p;\n\t}" : "=r"(count) : "r"(bits) : "memory");
}

//@ tf_team_barrier
// Each TEAM threads meet: those of one warp, or of several on a hardware barrier of their own (barrier 0 is the block's).
template <int TEAM> TF_INLINE void tf_team_barrier() {
  if constexpr (TEAM <= 32) __syncwarp();
  else asm volatile("barrier.cta.sync.aligned %0, %1;" :: "r"(1 + threadIdx.x / TEAM), "n"(TEAM) : "memory");
}

//@ tf_team_barrier_after
// As tf_block_barrier_after, for a team.
template <int TEAM> TF_INLINE void tf_team_barrier_after(unsigned int bits) {
  if constexpr (TEAM <= 32) {
    unsigned int lanes;  // nobody asks for them: the vote reads the bits
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, 0xffffffff;\n\t}" : "=r"(lanes) : "r"(bits) : "memory");
    __syncwarp();
  } else {
    unsigned int count;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tbarrier.cta.red.popc.aligned.u32 %0, %2, %3, p;\n\t}"
                 : "=r"(count) : "r"(bits), "r"(1 + threadIdx.x / TEAM), "n"(TEAM) : "memory");
  }
}

//@ tf_cluster_send
// Stores into another block's shared memory and counts the bytes on that block's transaction barrier.
template <class T> TF_INLINE void tf_cluster_send(T* memory, unsigned int rank, T value, unsigned long long* barrier) {
  const unsigned int remote = tf_cluster_address(memory, rank), arrival = tf_cluster_address(barrier, rank);
  if constexpr (sizeof(T) == 8) {
    unsigned long long word;
    memcpy(&word, &value, 8);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" :: "r"(remote), "l"(word), "r"(arrival) : "memory");
  } else {
    static_assert(sizeof(T) == 4, "signalled stores are of 4 or 8 bytes");
    unsigned int word;
    memcpy(&word, &value, 4);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: "r"(remote), "r"(word), "r"(arrival) : "memory");
  }
}

//@ tf_cluster_send_four
// As tf_cluster_send, for four neighbouring elements of 4 bytes at a multiple of 16 bytes.
template <class T> TF_INLINE void tf_cluster_send_four(T* memory, unsigned int rank, T a, T b, T c, T d, unsigned long long* barrier) {
  static_assert(sizeof(T) == 4, "elements of four together have 4 bytes");
  const unsigned int remote = tf_cluster_address(memory, rank), arrival = tf_cluster_address(barrier, rank);
  unsigned int words[4];
  memcpy(&words[0], &a, 4), memcpy(&words[1], &b, 4), memcpy(&words[2], &c, 4), memcpy(&words[3], &d, 4);
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
               :: "r"(remote), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(arrival) : "memory");
}

//@ tf_cluster_receive
// Announces the bytes that the cluster sends to this block, or to each TEAM threads of it, and waits for them.
template <int TEAM = 1024> TF_INLINE void tf_cluster_receive(unsigned long long* barrier, unsigned int phase, unsigned int num_bytes) {
  const unsigned int arrival = tf_shared_address(barrier);
  // The remainder is no free comparison: a backward of norms over rows of 262144 took 92.2 us with it for whole blocks, 83.0 without (H200).
  if (TEAM == 1024 ? threadIdx.x == 0 : threadIdx.x % TEAM == 0)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(arrival), "r"(num_bytes) : "memory");
  unsigned int done;
  do {
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done) : "r"(arrival), "r"(phase) : "memory");
  } while (!done);
}
