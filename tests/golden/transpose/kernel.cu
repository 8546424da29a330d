// k_y: 2048 blocks of 1024 threads, 33008 bytes of shared memory, for sm_90a
// nodes: %y
// schedule: y [GRID,GRID-CTA_1024]S; rows=128; columns=128; read_vector=8; write_vector=8; depth=2; cta_num=2048; cta_size=1024;
// reads 67108864 bytes, writes 67108864 bytes
extern "C" __global__ void __launch_bounds__(1024)
k_y(
    const tf_f16* __restrict__ x,
    tf_f16* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  tf_f16* const x_tile = reinterpret_cast<tf_f16*>(tf_shared);
  tf_wait_for_earlier_kernel();
  const int tile_w = (block & 31);
  const int tile_r = (block >> 5);
  // %x: global memory -> shared memory, along r0
  alignas(16) tf_f16 x_v[16];
  const int lane_1 = (thread & 15);
  const int w = (thread >> 4);
  #pragma unroll
  for (int d = 0; d < 2; ++d) {
    tf_vector_load_last<8>(x_v + 8 * d, x + 8192 * d + 8 * lane_1 + 128 * tile_r + 1048576 * tile_w + 16384 * w);
  }
  const int lane_2 = (thread & 15);
  const int w_1 = (thread >> 4);
  #pragma unroll
  for (int v = 0; v < 8; ++v) {
    alignas(16) tf_f16 x_column[2];
    #pragma unroll
    for (int d_1 = 0; d_1 < 2; ++d_1) {
      x_column[d_1] = x_v[8 * d_1 + v];
    }
    tf_vector_store<2>(x_tile + 1032 * lane_2 + 128 * v + 2 * w_1, x_column);
  }
  __syncthreads();
  // %y: shared memory -> global memory, along r1
  #pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int item = 1024 * step + thread;
    const int w_vector = (item & 15);
    const int r = (item >> 4);
    alignas(16) tf_f16 x_v_1[8];
    tf_vector_load<8>(x_v_1, x_tile + 128 * r + 8 * w_vector + 8 * (r >> 3));
    alignas(16) tf_f16 y_out[8];
    #pragma unroll
    for (int v_1 = 0; v_1 < 8; ++v_1) {
      tf_f16 y_1 = x_v_1[v_1];
      y_out[v_1] = y_1;
    }
    tf_vector_store_stream<8>(y + 4096 * r + 524288 * tile_r + 128 * tile_w + 8 * w_vector, y_out);
  }
}
