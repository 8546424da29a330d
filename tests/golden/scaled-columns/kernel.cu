// k_y: 8192 blocks of 128 threads, for sm_90a
// nodes: %k, %y
// schedule: y [GRID,GRID-CTA_128]; vector=8; steps=2; unrolled=true; cta_num=8192; cta_size=128;
// reads 33556480 bytes, writes 33554432 bytes
extern "C" __global__ void __launch_bounds__(128)
k_y(
    const tf_bf16* __restrict__ x,
    const float* __restrict__ w,
    const float* __restrict__ b,
    tf_bf16* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  tf_wait_for_earlier_kernel();
  alignas(16) float w_v[8];
  alignas(16) float b_v[8];
  alignas(16) float k_v[8];
  tf_vector_load<8>(w_v, w + 8 * (thread & 31));
  tf_vector_load<8>(b_v, b + 8 * (thread & 31));
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    float k = (w_v[v] * w_v[v]);
    k_v[v] = k;
  }
  alignas(16) tf_bf16 x_v[16];
  #pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int vector = 256 * block + 128 * step + thread;
    tf_vector_load_stream<8>(x_v + 8 * step, x + 8 * vector);
  }
  #pragma unroll
  for (int step_1 = 0; step_1 < 2; ++step_1) {
    const int vector_1 = 256 * block + 128 * step_1 + thread;
    alignas(16) tf_bf16 y_out[8];
    #pragma unroll
    for (int v_1 = 0; v_1 < 8; ++v_1) {
      tf_bf16 y_1 = tf_bf16(((tf_float(x_v[8 * step_1 + v_1]) * k_v[v_1]) + b_v[v_1]));
      y_out[v_1] = y_1;
    }
    tf_vector_store_stream<8>(y + 8 * vector_1, y_out);
  }
}
