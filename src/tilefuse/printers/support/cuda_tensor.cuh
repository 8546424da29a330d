// Copies of boxes of tensors between global and shared memory by the copy engine (compute capability 9.0 and newer).
// Source of the instruction forms: PTX ISA, cp.async.bulk.tensor, prefetch.tensormap, fence.proxy and cp.async.bulk.wait_group.

//@ tf_tensor_map
// The driver's descriptor of a tensor (CUtensorMap of cuda.h, which NVRTC does not have).
struct __align__(64) tf_tensor_map { unsigned long long words[16]; };

//@ tf_tensor_prefetch
// Fetches a map that the block's first copy would else wait for.
TF_INLINE void tf_tensor_prefetch(const tf_tensor_map& map) {
  if (threadIdx.x == 0) asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}

//@ tf_cache_policy
// How long lines stay in the second-level cache: 1 longer than others, 2 shorter.
template <int CACHE> TF_INLINE unsigned long long tf_cache_policy() {
  unsigned long long policy = 0;
  if constexpr (CACHE == 1) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  if constexpr (CACHE == 2) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

//@ tf_tensor_load
// The calling thread starts a copy of a box to `target` in shared memory; its bytes are counted on the barrier `arrival`. MASK: ranks of
// the cluster that receive it, 0 for this block alone. The last coordinate is the innermost; instructions take them in the other order.
#define TF_LOAD_BOX(DIMENSIONS, PLACES, FORM, TAIL, ...) \
  asm volatile("cp.async.bulk.tensor." DIMENSIONS ".shared::cluster.global.mbarrier::complete_tx::bytes" FORM " [%0], [%1, {" PLACES \
               "}], [%2]" TAIL ";" \
               :: "r"(target), "l"(&map), "r"(arrival), "h"((unsigned short)MASK), "l"(policy), __VA_ARGS__ : "memory")
#define TF_LOAD_BOX_OF(DIMENSIONS, PLACES, ...) \
  if constexpr (MASK && CACHE) TF_LOAD_BOX(DIMENSIONS, PLACES, ".multicast::cluster.L2::cache_hint", ", %3, %4", __VA_ARGS__); \
  else if constexpr (MASK) TF_LOAD_BOX(DIMENSIONS, PLACES, ".multicast::cluster", ", %3", __VA_ARGS__); \
  else if constexpr (CACHE) TF_LOAD_BOX(DIMENSIONS, PLACES, ".L2::cache_hint", ", %4", __VA_ARGS__); \
  else TF_LOAD_BOX(DIMENSIONS, PLACES, "", "", __VA_ARGS__)
template <int MASK = 0, int CACHE = 0, int RANK>
TF_INLINE void tf_tensor_load(unsigned int target, const tf_tensor_map& map, unsigned int arrival, const int (&at)[RANK]) {
  const unsigned long long policy = tf_cache_policy<CACHE>();
  if constexpr (RANK == 1) { TF_LOAD_BOX_OF("1d", "%5", "r"(at[0])); }
  else if constexpr (RANK == 2) { TF_LOAD_BOX_OF("2d", "%5, %6", "r"(at[1]), "r"(at[0])); }
  else if constexpr (RANK == 3) { TF_LOAD_BOX_OF("3d", "%5, %6, %7", "r"(at[2]), "r"(at[1]), "r"(at[0])); }
  else if constexpr (RANK == 4) { TF_LOAD_BOX_OF("4d", "%5, %6, %7, %8", "r"(at[3]), "r"(at[2]), "r"(at[1]), "r"(at[0])); }
  else { TF_LOAD_BOX_OF("5d", "%5, %6, %7, %8, %9", "r"(at[4]), "r"(at[3]), "r"(at[2]), "r"(at[1]), "r"(at[0])); }
}

//@ tf_slot_copy
// The calling thread announces the bytes that arrive by this statement, from all blocks that run it, and starts its own copy.
template <int MASK = 0, int CACHE = 0, int RANK>
TF_INLINE void tf_slot_copy(void* shared, const tf_tensor_map& map, unsigned long long* barrier, unsigned int num_bytes, const int (&at)[RANK]) {
  const unsigned int arrival = tf_shared_address(barrier);
  tf_bulk_announce(arrival, num_bytes, false);
  tf_tensor_load<MASK, CACHE>(tf_shared_address(shared), map, arrival, at);
}

//@ tf_tensor_copy
// As tf_slot_copy, by thread 0, or by the first of each TEAM threads.
template <int TEAM = 1024, int MASK = 0, int CACHE = 0, int RANK>
TF_INLINE void tf_tensor_copy(void* shared, const tf_tensor_map& map, unsigned long long* barrier, bool arrive, unsigned int num_bytes,
                              const int (&at)[RANK]) {
  if (threadIdx.x % TEAM != 0) return;
  const unsigned int arrival = tf_shared_address(barrier);
  tf_bulk_announce(arrival, num_bytes, arrive);
  tf_tensor_load<MASK, CACHE>(tf_shared_address(shared), map, arrival, at);
}

//@ tf_proxy_fence
// This thread's stores to shared memory come before what the copy engine and the tensor cores read after the next barrier.
TF_INLINE void tf_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

//@ tf_tensor_store
// Thread 0, or the first of each TEAM threads, starts a store of a box from shared memory, as a group of its own.
#define TF_STORE_BOX(DIMENSIONS, PLACES, ...) \
  asm volatile("cp.async.bulk.tensor." DIMENSIONS ".global.shared::cta.bulk_group [%0, {" PLACES "}], [%1];" \
               :: "l"(&map), "r"(source), __VA_ARGS__ : "memory")
template <int TEAM = 1024, int RANK> TF_INLINE void tf_tensor_store(const tf_tensor_map& map, const void* shared, const int (&at)[RANK]) {
  if (threadIdx.x % TEAM != 0) return;
  const unsigned int source = tf_shared_address(shared);
  if constexpr (RANK == 1) TF_STORE_BOX("1d", "%2", "r"(at[0]));
  else if constexpr (RANK == 2) TF_STORE_BOX("2d", "%2, %3", "r"(at[1]), "r"(at[0]));
  else if constexpr (RANK == 3) TF_STORE_BOX("3d", "%2, %3, %4", "r"(at[2]), "r"(at[1]), "r"(at[0]));
  else if constexpr (RANK == 4) TF_STORE_BOX("4d", "%2, %3, %4, %5", "r"(at[3]), "r"(at[2]), "r"(at[1]), "r"(at[0]));
  else TF_STORE_BOX("5d", "%2, %3, %4, %5, %6", "r"(at[4]), "r"(at[3]), "r"(at[2]), "r"(at[1]), "r"(at[0]));
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

//@ tf_tensor_store_wait
// The threads that start stores wait until at most PENDING of theirs still read shared memory.
template <int PENDING, int TEAM = 1024> TF_INLINE void tf_tensor_store_wait() {
  if (threadIdx.x % TEAM == 0) asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}
