// k_y: 8192 blocks of 256 threads, 8320 bytes of shared memory, for sm_90a
// nodes: %y
// schedule: map [GRID-CTA_256]S tile 32x128 read r0 vector 8 write r1 vector 8
// reads 67108864 bytes, writes 67108864 bytes
extern "C" __global__ void __launch_bounds__(256)
k_y(
    const tf_f16* __restrict__ x,
    tf_f16* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  tf_f16* const x_tile = reinterpret_cast<tf_f16*>(tf_shared);
  const int tile_w = (block & 127);
  const int tile_r = (block >> 7);
  // %x: global memory -> shared memory, along r0
  alignas(16) tf_f16 x_v[16];
  #pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int item = 256 * step + thread;
    const int r_vector = (item & 15);
    const int w = (item >> 4);
    tf_vector_load_stream<8>(x_v + 8 * step, x + 8 * r_vector + 128 * tile_r + 262144 * tile_w + 8192 * w);
  }
  #pragma unroll
  for (int step_1 = 0; step_1 < 2; ++step_1) {
    const int item_1 = 256 * step_1 + thread;
    const int r_vector_1 = (item_1 & 15);
    const int w_1 = (item_1 >> 4);
    #pragma unroll
    for (int v = 0; v < 8; ++v) {
      x_tile[8 * r_vector_1 + v + 130 * w_1] = x_v[8 * step_1 + v];
    }
  }
  __syncthreads();
  // %y: shared memory -> global memory, along r1
  #pragma unroll
  for (int step_2 = 0; step_2 < 2; ++step_2) {
    const int item_2 = 256 * step_2 + thread;
    const int w_vector = (item_2 & 3);
    const int r = (item_2 >> 2);
    alignas(16) tf_f16 x_v_1[8];
    #pragma unroll
    for (int v_1 = 0; v_1 < 8; ++v_1) {
      x_v_1[v_1] = x_tile[r + 130 * v_1 + 1040 * w_vector];
    }
    alignas(16) tf_f16 y_out[8];
    #pragma unroll
    for (int v_2 = 0; v_2 < 8; ++v_2) {
      tf_f16 y_1 = x_v_1[v_2];
      y_out[v_2] = y_1;
    }
    tf_vector_store_stream<8>(y + 4096 * r + 524288 * tile_r + 32 * tile_w + 8 * w_vector, y_out);
  }
}
