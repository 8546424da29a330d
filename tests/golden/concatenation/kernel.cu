// k_y: 6144 blocks of 128 threads, for sm_90a
// nodes: %y
// schedule: y [GRID,GRID-CTA_128]; vector=8; steps=1; unrolled=true; cta_num=6144; cta_size=128;
// reads 12582912 bytes, writes 12582912 bytes
extern "C" __global__ void __launch_bounds__(128)
k_y(
    const tf_f16* __restrict__ x,
    const tf_f16* __restrict__ z,
    tf_f16* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  tf_wait_for_earlier_kernel();
  const int vector = 128 * block + thread;
  const int vector_1 = 128 * block + thread;
  alignas(16) tf_f16 x_v[8];
  if (8 * tf_index_rem(vector_1, 192) < 1024) {
    tf_vector_load_stream<8>(x_v, x + 8 * tf_index_rem(vector_1, 192) + 1024 * tf_index_div(vector_1, 192));
  } else {
    tf_vector_load_stream<8>(x_v, z + 8 * tf_index_rem(vector_1, 192) + 512 * tf_index_div(vector_1, 192) - 1024);
  }
  alignas(16) tf_f16 y_out[8];
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    tf_f16 y_1 = (v + 8 * tf_index_rem(vector_1, 192) < 1024 ? x_v[v] : x_v[v]);
    y_out[v] = y_1;
  }
  tf_vector_store<8>(y + 8 * vector_1, y_out);
}
