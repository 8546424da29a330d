// k_y: 1024 blocks of 256 threads, 256 bytes of shared memory, for sm_90a
// nodes: %y
// schedule: y [GRID,CTA_256]; vector=4; chunks=8; on_chip=true; lanes=2; cta_num=1024; cta_size=256;
// reads 33554432 bytes, writes 33554432 bytes
extern "C" __global__ void __launch_bounds__(256)
k_y(
    const float* __restrict__ x,
    float* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const y_warps = reinterpret_cast<float*>(tf_shared);
  alignas(16) float x_v[32];
  // %x: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    const int vector = 256 * chunk + thread;
    tf_vector_load_stream<4>(x_v + 4 * chunk, x + 8192 * block + 4 * vector);
  }
  // %y (scan.sum): lanes -> warp -> block
  alignas(16) float y_v[32];
  alignas(16) float y_total[8];
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 8; ++chunk_1) {
    y_total[chunk_1] = 0.0f;
    const int vector_1 = 256 * chunk_1 + thread;
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      y_total[chunk_1] = (y_total[chunk_1] + x_v[4 * chunk_1 + v]);
      y_v[4 * chunk_1 + v] = y_total[chunk_1];
    }
  }
  const int lane_of_warp = (thread & 31);
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 8; ++chunk_2) {
    float lower;
    lower = tf_shuffle_up<0xffffffffu>(y_total[chunk_2], 1, 32);
    if (lane_of_warp >= 1) {
      y_total[chunk_2] = (lower + y_total[chunk_2]);
    }
    float lower_1;
    lower_1 = tf_shuffle_up<0xffffffffu>(y_total[chunk_2], 2, 32);
    if (lane_of_warp >= 2) {
      y_total[chunk_2] = (lower_1 + y_total[chunk_2]);
    }
    float lower_2;
    lower_2 = tf_shuffle_up<0xffffffffu>(y_total[chunk_2], 4, 32);
    if (lane_of_warp >= 4) {
      y_total[chunk_2] = (lower_2 + y_total[chunk_2]);
    }
    float lower_3;
    lower_3 = tf_shuffle_up<0xffffffffu>(y_total[chunk_2], 8, 32);
    if (lane_of_warp >= 8) {
      y_total[chunk_2] = (lower_3 + y_total[chunk_2]);
    }
    float lower_4;
    lower_4 = tf_shuffle_up<0xffffffffu>(y_total[chunk_2], 16, 32);
    if (lane_of_warp >= 16) {
      y_total[chunk_2] = (lower_4 + y_total[chunk_2]);
    }
  }
  const int warp_1 = (thread >> 5);
  #pragma unroll
  for (int chunk_3 = 0; chunk_3 < 8; ++chunk_3) {
    if (lane_of_warp >= 31) {
      y_warps[8 * chunk_3 + warp_1] = y_total[chunk_3];
    }
  }
  __syncthreads();
  float before = 0.0f;
  #pragma unroll
  for (int chunk_4 = 0; chunk_4 < 8; ++chunk_4) {
    float before_warp = before;
    float before_lane;
    #pragma unroll
    for (int slot = 0; slot < 8; ++slot) {
      float warp_sum = y_warps[8 * chunk_4 + slot];
      if (slot < warp_1) {
        before_warp = (before_warp + warp_sum);
      }
      before = (before + warp_sum);
    }
    before_lane = tf_shuffle_up<0xffffffffu>(y_total[chunk_4], 1, 32);
    if (lane_of_warp >= 1) {
      before_warp = (before_warp + before_lane);
    }
    const int vector_2 = 256 * chunk_4 + thread;
    #pragma unroll
    for (int v_1 = 0; v_1 < 4; ++v_1) {
      y_v[4 * chunk_4 + v_1] = (before_warp + y_v[4 * chunk_4 + v_1]);
    }
  }
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_5 = 0; chunk_5 < 8; ++chunk_5) {
    const int vector_3 = 256 * chunk_5 + thread;
    alignas(16) float y_out[4];
    #pragma unroll
    for (int v_2 = 0; v_2 < 4; ++v_2) {
      y_out[v_2] = y_v[4 * chunk_5 + v_2];
    }
    tf_vector_store_stream<4>(y + 8192 * block + 4 * vector_3, y_out);
  }
}
