// k_y: 3136 blocks of 384 threads, 12336 bytes of shared memory, for sm_90a
// nodes: %y
// schedule: y [GRID,GRID,GRID,GRID-CTA_384]S; rows=3; columns=1024; read_vector=4; write_vector=4; writes_run=true; cta_num=3136; cta_size=384;
// reads 38535168 bytes, writes 38535168 bytes
extern "C" __global__ void __launch_bounds__(384)
k_y(
    const float* __restrict__ x,
    float* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const x_tile = reinterpret_cast<float*>(tf_shared);
  tf_wait_for_earlier_kernel();
  const int tile_r = tf_index_rem(block, 49);
  const int batch = tf_index_div(block, 49);
  // %x: global memory -> shared memory, along r1
  alignas(16) float x_v[8];
  #pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int item = 384 * step + thread;
    const int r_vector = (item & 255);
    const int w = (item >> 8);
    tf_vector_load_stream<4>(x_v + 4 * step, x + 150528 * batch + 4 * r_vector + 1024 * tile_r + 50176 * w);
  }
  #pragma unroll
  for (int step_1 = 0; step_1 < 2; ++step_1) {
    const int item_1 = 384 * step_1 + thread;
    const int r_vector_1 = (item_1 & 255);
    const int w_1 = (item_1 >> 8);
    tf_vector_store<4>(x_tile + 4 * r_vector_1 + 1028 * w_1, x_v + 4 * step_1);
  }
  __syncthreads();
  // %y: shared memory -> global memory, in runs along r3 and r1
  #pragma unroll
  for (int step_2 = 0; step_2 < 2; ++step_2) {
    const int item_2 = 384 * step_2 + thread;
    alignas(16) float x_v_1[4];
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      tf_vector_load<1>(x_v_1 + v, x_tile + tf_index_div(4 * item_2 + v, 3) + 1028 * tf_index_rem(item_2 + v, 3));
    }
    alignas(16) float y_out[4];
    #pragma unroll
    for (int v_1 = 0; v_1 < 4; ++v_1) {
      float y_1 = x_v_1[v_1];
      y_out[v_1] = y_1;
    }
    tf_vector_store_stream<4>(y + 150528 * batch + 4 * item_2 + 3072 * tile_r, y_out);
  }
}
