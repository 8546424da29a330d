// k_y_t: 24576 blocks of 128 threads, for sm_90a
// nodes: %t, %y
// schedule: t [GRID,GRID-CTA_128]; y [GRID,GRID-CTA_128]; vector=8; steps=1; unrolled=true; cta_num=24576; cta_size=128;
// reads 50337792 bytes, writes 150994944 bytes
extern "C" __global__ void __launch_bounds__(128)
k_y_t(
    const tf_f16* __restrict__ x,
    const tf_f16* __restrict__ b,
    tf_f16* __restrict__ y,
    float* __restrict__ t) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  tf_wait_for_earlier_kernel();
  alignas(16) tf_f16 x_v[8];
  alignas(16) tf_f16 b_v[8];
  const int vector = 128 * block + thread;
  tf_vector_load_stream<8>(x_v, x + 8 * vector);
  tf_vector_load<8>(b_v, b + 8 * tf_index_rem(vector, 384));
  const int vector_1 = 128 * block + thread;
  alignas(16) tf_f16 y_out[8];
  alignas(16) float t_out[8];
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    float t_1 = (tf_float(x_v[v]) + tf_float(b_v[v]));
    tf_f16 y_1 = tf_f16(((0.5f * t_1) * (1.0f + erff((t_1 * 0.70710677f)))));
    y_out[v] = y_1;
    t_out[v] = t_1;
  }
  tf_vector_store_stream<8>(y + 8 * vector_1, y_out);
  tf_vector_store_stream<8>(t + 8 * vector_1, t_out);
}
