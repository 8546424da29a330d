// k_y: 6144 blocks of 128 threads, for sm_90a
// nodes: %y
// schedule: y [GRID,GRID-CTA_128]; vector=8; steps=1; unrolled=true; cta_num=6144; cta_size=128;
// reads 12648448 bytes, writes 12582912 bytes
extern "C" __global__ void __launch_bounds__(128)
k_y(
    const tf_f16* __restrict__ t,
    const long long* __restrict__ ids,
    tf_f16* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  tf_wait_for_earlier_kernel();
  int tf_fault = 0;
  const int vector = 128 * block + thread;
  const int vector_1 = 128 * block + thread;
  alignas(16) tf_f16 t_v[8];
  long long ids_at = ids[tf_index_div(vector_1, 96)];
  tf_vector_load_stream<8>(t_v, t + 8 * tf_index_rem(vector_1, 96) + (int)tf_in_range(((ids_at < 0ll) ? (long long)((unsigned long long)ids_at + (unsigned long long)30522ll) : ids_at), 30522ll, tf_fault, 1, false) * 768);
  alignas(16) tf_f16 y_out[8];
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    tf_f16 y_1 = t_v[v];
    y_out[v] = y_1;
  }
  tf_vector_store<8>(y + 8 * vector_1, y_out);
  if (tf_fault) tf_out_of_range("-30522 <= ids < 30522, subscript 0 of t");
}
