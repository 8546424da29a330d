// Pipelines of warp-specialised kernels: transaction barriers of ring slots, registers of roles, operands of warpgroup products.
// Source of the instruction forms: PTX ISA, mbarrier, setmaxnreg, fence.proxy.async, wgmma; layouts of operands: wgmma, matrix descriptors.

//@ tf_ring_init
// The barriers of a ring's slots: `producers` arrivals fill a slot, `consumers` arrivals empty it.
TF_INLINE void tf_ring_init(unsigned long long* full, unsigned long long* empty, int slots, int producers, int consumers) {
  if (threadIdx.x != 0) return;
  for (int n = 0; n < slots; ++n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(tf_shared_address(full + n)), "r"(producers) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(tf_shared_address(empty + n)), "r"(consumers) : "memory");
  }
}

//@ tf_rings_ready
// All threads of the block, and copies, see the barriers.
TF_INLINE void tf_rings_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
}

//@ tf_slot_arrive
TF_INLINE void tf_slot_arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(tf_shared_address(barrier)) : "memory");
}

//@ tf_slot_arrive_at
// The arrival at the same barrier of another block of the cluster. Its scope is the block: the products that read the slot have ended, and
// a release in the cluster would also wait for all of the thread's accesses to global memory, about a microsecond each time.
TF_INLINE void tf_slot_arrive_at(unsigned long long* barrier, unsigned int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(tf_cluster_address(barrier, rank)) : "memory");
}

//@ tf_expect_bytes
// Copies of this many bytes complete on the barrier before its phase ends.
TF_INLINE void tf_expect_bytes(unsigned long long* barrier, unsigned int num_bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(tf_shared_address(barrier)), "r"(num_bytes) : "memory");
}

//@ tf_next_slot
// The parity of a slot's phase changes when the slots have all been used.
template <int SLOTS> TF_INLINE void tf_next_slot(int& slot, unsigned int& phase) {
  if (++slot == SLOTS) slot = 0, phase ^= 1u;
}

//@ tf_skip_slots
// COUNT fillings that other warpgroups use.
template <int SLOTS, int COUNT> TF_INLINE void tf_skip_slots(int& slot, unsigned int& phase) {
  slot += COUNT % SLOTS;
  phase ^= COUNT / SLOTS & 1;
  if (slot >= SLOTS) slot -= SLOTS, phase ^= 1u;
}

//@ tf_turns_init
// A barrier for each consumer warpgroup, at which the four warps of the one before arrive.
TF_INLINE void tf_turns_init(unsigned long long* turns, int warpgroups) {
  if (threadIdx.x != 0) return;
  for (int n = 0; n < warpgroups; ++n)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 4;" :: "r"(tf_shared_address(turns + n)) : "memory");
}

//@ tf_own_warpgroup
// The number of the thread's warpgroup, which the compiler knows to be equal in the threads of a warp.
TF_INLINE int tf_own_warpgroup() { return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0); }

//@ tf_pass_turn
template <int WARPGROUPS> TF_INLINE void tf_pass_turn(unsigned long long* turns, int own) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) tf_slot_arrive(turns + (own + 1 == WARPGROUPS ? 0 : own + 1));
}

//@ tf_release_slots
// Each consumer warp releases the oldest of the `open` slots before `slot` until KEPT remain; at most COUNT are to be released. BLOCKS: blocks
// of the cluster that fill the slots.
template <int SLOTS, int KEPT, int COUNT, int BLOCKS> TF_INLINE void tf_release_slots(unsigned long long* empty, int slot, int& open) {
  __syncwarp();
  const unsigned int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < COUNT; ++n) {
    if (open <= KEPT) break;
    const int oldest = slot >= open ? slot - open : slot - open + SLOTS;
    if constexpr (BLOCKS > 1) {
      if (lane < BLOCKS) tf_slot_arrive_at(empty + oldest, lane);
    } else if (lane == 0) {
      tf_slot_arrive(empty + oldest);
    }
    --open;
  }
}

//@ tf_lower_registers
template <int COUNT> TF_INLINE void tf_lower_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT)); }

//@ tf_raise_registers
template <int COUNT> TF_INLINE void tf_raise_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT)); }

//@ tf_consumer_barrier
// The consumers of a pipeline meet at the last hardware barrier; teams use the first ones.
template <int THREADS> TF_INLINE void tf_consumer_barrier() { asm volatile("barrier.cta.sync.aligned 15, %0;" :: "n"(THREADS) : "memory"); }

//@ tf_consumer_barrier_after
// As tf_block_barrier_after, for consumers.
template <int THREADS> TF_INLINE void tf_consumer_barrier_after(unsigned int bits) {
  unsigned int count;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tbarrier.cta.red.popc.aligned.u32 %0, 15, %2, p;\n\t}"
               : "=r"(count) : "r"(bits), "n"(THREADS) : "memory");
}

//@ tf_last_block_of_consumers
// As tf_last_block, for consumers.
template <int THREADS> TF_INLINE bool tf_last_block_of_consumers(void* counter, unsigned int count) {
  tf_consumer_barrier<THREADS>();
  unsigned int last = 0;
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(static_cast<unsigned int*>(counter), count - 1u) == count - 1u;
  }
  unsigned int any;
  asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbarrier.cta.red.or.aligned.pred q, 15, %2, p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
               : "=r"(any) : "r"(last), "n"(THREADS) : "memory");
  if (any) __threadfence();
  return any != 0;
}

//@ tf_swizzled
// Address of an element of a buffer whose 16-byte chunks are permuted in lines of 128 bytes; the buffer starts at a multiple of 1024 bytes.
template <int SWIZZLE, class T> TF_INLINE T* tf_swizzled(T* memory, int index) {
  const unsigned int byte = (unsigned int)index * (unsigned int)sizeof(T);
  return (T*)((unsigned char*)memory + (byte ^ ((byte >> 7 & (SWIZZLE / 16 - 1)) << 4)));
}

//@ tf_swizzled_load
template <int SWIZZLE, int WIDTH, class T> TF_INLINE void tf_swizzled_load(T* registers, const T* memory, int index) {
  constexpr int each = WIDTH * sizeof(T) <= 16 ? WIDTH : 16 / sizeof(T);
#pragma unroll
  for (int n = 0; n < WIDTH; n += each) tf_vector_load<each>(registers + n, tf_swizzled<SWIZZLE>(memory, index + n));
}

//@ tf_swizzled_store
template <int SWIZZLE, int WIDTH, class T> TF_INLINE void tf_swizzled_store(T* memory, int index, const T* registers) {
  constexpr int each = WIDTH * sizeof(T) <= 16 ? WIDTH : 16 / sizeof(T);
#pragma unroll
  for (int n = 0; n < WIDTH; n += each) tf_vector_store<each>(tf_swizzled<SWIZZLE>(memory, index + n), registers + n);
}

//@ tf_operand
// Descriptor of a warpgroup product's operand in shared memory: its address, the leading and the stride byte offset, the swizzle.
template <int SWIZZLE> TF_INLINE unsigned long long tf_operand(const void* memory, unsigned int leading_bytes, unsigned int stride_bytes) {
  constexpr unsigned long long mode = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : SWIZZLE == 32 ? 3 : 0;
  return (unsigned long long)((tf_shared_address(memory) & 0x3ffffu) >> 4) | (unsigned long long)(leading_bytes >> 4) << 16
         | (unsigned long long)(stride_bytes >> 4) << 32 | mode << 62;
}

//@ tf_products_begin
// Orders earlier accesses to the registers of sums and left operands before the products that follow.
TF_INLINE void tf_products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

//@ tf_products_end
TF_INLINE void tf_products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

//@ tf_products_wait
template <int PENDING> TF_INLINE void tf_products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }

//@ tf_left_words
// The four registers of a left operand in the layout of sums: 8 elements of 16 bits that follow each other.
struct tf_left_words {
  unsigned int of[4];
  template <class T> TF_INLINE explicit tf_left_words(const T* elements) { memcpy(of, elements, sizeof of); }
};

//@ tf_settle
// The compiler takes no access to these registers across this point: products in flight use them without its knowledge.
template <int N> TF_INLINE void tf_settle(float (&array)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) asm volatile("" : "+f"(array[n]) :: "memory");
}
template <int N> TF_INLINE void tf_settle(int (&array)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) asm volatile("" : "+r"(array[n]) :: "memory");
}
