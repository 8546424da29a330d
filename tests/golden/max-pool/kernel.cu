// k_y: 50176 blocks of 128 threads, for sm_90a
// nodes: %y
// schedule: y [GRID,GRID,GRID,GRID-CTA_128,THREAD,THREAD]; vector=1; steps=1; unrolled=true; cta_num=50176; cta_size=128;
// reads 102760448 bytes, writes 25690112 bytes
extern "C" __global__ void __launch_bounds__(128)
k_y(
    const float* __restrict__ x,
    float* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  tf_wait_for_earlier_kernel();
  const int vector = 128 * block + thread;
  const int vector_1 = 128 * block + thread;
  // %y: reduce.max by one thread
  float y_1 = (-tf_inf_f32());
  #pragma unroll
  for (int y_p_0 = 0; y_p_0 < 3; ++y_p_0) {
    #pragma unroll
    for (int y_q_0 = 0; y_q_0 < 3; ++y_q_0) {
      float y_x = (y_p_0 + 2 * tf_index_rem(tf_index_div(vector_1, 56), 56) - 1 >= 0 && y_q_0 + 2 * tf_index_rem(vector_1, 56) - 1 >= 0 ? x[2 * vector_1 + 112 * y_p_0 + y_q_0 + 112 * tf_index_div(vector_1, 56) - 113] : (-tf_inf_f32()));
      y_1 = tf_maximum(y_1, y_x);
    }
  }
  tf_store_stream(&y[vector_1], y_1);
}
