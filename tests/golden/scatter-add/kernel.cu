// k_y: 49152 blocks of 128 threads, for sm_90a
// nodes: %y
// schedule: y [GRID,GRID,GRID,GRID-CTA_128]; vector=1; steps=1; unrolled=true; cta_num=49152; cta_size=128;
// reads 25231360 bytes, writes 50331648 bytes
extern "C" __global__ void __launch_bounds__(128)
k_y(
    const long long* __restrict__ ids,
    const float* __restrict__ g,
    float* y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  tf_wait_for_earlier_kernel();
  const int vector = 128 * block + thread;
  const int vector_1 = 128 * block + thread;
  float g_at = tf_load_stream(&g[vector_1]);
  long long ids_at = ids[tf_index_div(vector_1, 768)];
  bool inside = bool((ids_at >= 0ll) & (ids_at < 30522ll));
  if (inside) {
    tf_atomic_sum(&y[tf_index_rem(vector_1, 768) + (int)ids_at * 768], g_at);
  }
}
