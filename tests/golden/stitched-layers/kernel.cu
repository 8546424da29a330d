// k_clamp_2: 512 blocks of 128 threads, 27648 bytes of shared memory, for sm_90a
// nodes: %matmul, %add, %clamp, %matmul_1, %add_1, %clamp_1, %matmul_2, %add_2, %clamp_2
// schedule: x [GRID-CTA_128,CTA_64]S; w0 [CTA_64,CTA_64]S; clamp [GRID-CTA_128,CTA_64,WARP]; w1 [CTA_64,CTA_64]S; clamp_1 [GRID-CTA_128,CTA_64,WARP]; w2 [CTA_64,CTA_64]S; clamp_2 [GRID-CTA_128,CTA_64,WARP]; tile_0=128; tile_1=64; cta_num=512; cta_size=128;
// reads 8413568 bytes, writes 8388608 bytes
// shared memory: 27648 bytes allocated, 46080 requested
extern "C" __global__ void __launch_bounds__(128)
k_clamp_2(
    const tf_f16* __restrict__ x,
    const tf_f16* __restrict__ w0,
    const tf_f16* __restrict__ b0,
    const tf_f16* __restrict__ w1,
    const tf_f16* __restrict__ b1,
    const tf_f16* __restrict__ w2,
    const tf_f16* __restrict__ b2,
    tf_f16* __restrict__ clamp_2) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  tf_f16* const x_tile = reinterpret_cast<tf_f16*>(tf_shared);  // %x
  tf_f16* const w0_tile = reinterpret_cast<tf_f16*>(tf_shared + 18432);  // %w0
  tf_f16* const w1_tile = reinterpret_cast<tf_f16*>(tf_shared);  // %w1
  tf_f16* const w2_tile = reinterpret_cast<tf_f16*>(tf_shared);  // %w2
  // %x: copy -> shared memory
  for (int step = 0; step < 8; ++step) {
    const int item = 128 * step + thread;
    const int x_1 = (item & 7);
    const int i0 = (item >> 3);
    alignas(16) tf_f16 x_out[8];
    alignas(16) tf_f16 x_v[8];
    tf_vector_load<8>(x_v, x + 8192 * block + 64 * i0 + 8 * x_1);
    #pragma unroll
    for (int v_1 = 0; v_1 < 8; ++v_1) {
      x_out[v_1] = x_v[v_1];
    }
    tf_vector_store<8>(x_tile + 72 * i0 + 8 * x_1, x_out);
  }
  // %w0: copy -> shared memory
  #pragma unroll
  for (int step_1 = 0; step_1 < 4; ++step_1) {
    const int item_1 = 128 * step_1 + thread;
    const int x_2 = (item_1 & 7);
    const int i0_1 = (item_1 >> 3);
    alignas(16) tf_f16 w0_out[8];
    alignas(16) tf_f16 w0_v[8];
    tf_vector_load<8>(w0_v, w0 + 64 * i0_1 + 8 * x_2);
    #pragma unroll
    for (int v_4 = 0; v_4 < 8; ++v_4) {
      w0_out[v_4] = w0_v[v_4];
    }
    tf_vector_store<8>(w0_tile + 72 * i0_1 + 8 * x_2, w0_out);
  }
  __syncthreads();
  // %clamp: product, %matmul in registers -> 
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  alignas(16) tf_f16 clamp_held[64];
  // %matmul: the warp's tile on the matrix unit
  alignas(16) float matmul_sum[64];
  #pragma unroll
  for (int n = 0; n < 64; ++n) {
    matmul_sum[n] = 0.0f;
  }
  tf_matrix_product<2, 8, false, true, 64>(matmul_sum, x_tile + 2304 * warp_1, 72, w0_tile, 72);
  #pragma unroll
  for (int a = 0; a < 2; ++a) {
    #pragma unroll
    for (int b = 0; b < 8; ++b) {
      #pragma unroll
      for (int half_1 = 0; half_1 < 2; ++half_1) {
        alignas(16) tf_f16 clamp_out[2];
        alignas(16) tf_f16 b0_v[2];
        tf_vector_load<2>(b0_v, b0 + 8 * b + 2 * (lane_of_warp & 3));
        #pragma unroll
        for (int v_7 = 0; v_7 < 2; ++v_7) {
          tf_f16 matmul = tf_f16(matmul_sum[32 * a + 4 * b + 2 * half_1 + v_7]);
          tf_f16 add = tf_f16((tf_float(matmul) + tf_float(b0_v[v_7])));
          tf_f16 clamp = tf_f16(tf_minimum(tf_maximum(tf_float(add), 0.0f), 3.0f));
          clamp_out[v_7] = clamp;
        }
        clamp_held[32 * a + 4 * b + 2 * half_1] = clamp_out[0];
        clamp_held[32 * a + 4 * b + 2 * half_1 + 1] = clamp_out[1];
      }
    }
  }
  __syncthreads();
  // %w1: copy -> shared memory
  #pragma unroll
  for (int step_2 = 0; step_2 < 4; ++step_2) {
    const int item_2 = 128 * step_2 + thread;
    const int x_3 = (item_2 & 7);
    const int i0_2 = (item_2 >> 3);
    alignas(16) tf_f16 w1_out[8];
    alignas(16) tf_f16 w1_v[8];
    tf_vector_load<8>(w1_v, w1 + 64 * i0_2 + 8 * x_3);
    #pragma unroll
    for (int v_10 = 0; v_10 < 8; ++v_10) {
      w1_out[v_10] = w1_v[v_10];
    }
    tf_vector_store<8>(w1_tile + 72 * i0_2 + 8 * x_3, w1_out);
  }
  __syncthreads();
  // %clamp_1: product, %matmul_1 in registers -> 
  const int warp_2 = (thread >> 5);
  const int lane_of_warp_1 = (thread & 31);
  alignas(16) tf_f16 clamp_1_held[64];
  // %matmul_1: the warp's tile on the matrix unit
  alignas(16) float matmul_1_sum[64];
  #pragma unroll
  for (int n_1 = 0; n_1 < 64; ++n_1) {
    matmul_1_sum[n_1] = 0.0f;
  }
  tf_held_product<2, 8, true, 64>(matmul_1_sum, clamp_held, w1_tile, 72);
  #pragma unroll
  for (int a_1 = 0; a_1 < 2; ++a_1) {
    #pragma unroll
    for (int b_1 = 0; b_1 < 8; ++b_1) {
      #pragma unroll
      for (int half_2 = 0; half_2 < 2; ++half_2) {
        alignas(16) tf_f16 clamp_1_out[2];
        alignas(16) tf_f16 b1_v[2];
        tf_vector_load<2>(b1_v, b1 + 8 * b_1 + 2 * (lane_of_warp_1 & 3));
        #pragma unroll
        for (int v_13 = 0; v_13 < 2; ++v_13) {
          tf_f16 matmul_1 = tf_f16(matmul_1_sum[32 * a_1 + 4 * b_1 + 2 * half_2 + v_13]);
          tf_f16 add_1 = tf_f16((tf_float(matmul_1) + tf_float(b1_v[v_13])));
          tf_f16 clamp_1 = tf_f16(tf_minimum(tf_maximum(tf_float(add_1), 0.0f), 3.0f));
          clamp_1_out[v_13] = clamp_1;
        }
        clamp_1_held[32 * a_1 + 4 * b_1 + 2 * half_2] = clamp_1_out[0];
        clamp_1_held[32 * a_1 + 4 * b_1 + 2 * half_2 + 1] = clamp_1_out[1];
      }
    }
  }
  __syncthreads();
  // %w2: copy -> shared memory
  #pragma unroll
  for (int step_3 = 0; step_3 < 4; ++step_3) {
    const int item_3 = 128 * step_3 + thread;
    const int x_4 = (item_3 & 7);
    const int i0_3 = (item_3 >> 3);
    alignas(16) tf_f16 w2_out[8];
    alignas(16) tf_f16 w2_v[8];
    tf_vector_load<8>(w2_v, w2 + 64 * i0_3 + 8 * x_4);
    #pragma unroll
    for (int v_16 = 0; v_16 < 8; ++v_16) {
      w2_out[v_16] = w2_v[v_16];
    }
    tf_vector_store<8>(w2_tile + 72 * i0_3 + 8 * x_4, w2_out);
  }
  __syncthreads();
  // %clamp_2: product, %matmul_2 in registers -> global memory
  const int warp_3 = (thread >> 5);
  const int lane_of_warp_2 = (thread & 31);
  // %matmul_2: the warp's tile on the matrix unit
  alignas(16) float matmul_2_sum[64];
  #pragma unroll
  for (int n_2 = 0; n_2 < 64; ++n_2) {
    matmul_2_sum[n_2] = 0.0f;
  }
  tf_held_product<2, 8, true, 64>(matmul_2_sum, clamp_1_held, w2_tile, 72);
  #pragma unroll
  for (int a_2 = 0; a_2 < 2; ++a_2) {
    #pragma unroll
    for (int b_2 = 0; b_2 < 8; ++b_2) {
      #pragma unroll
      for (int half_3 = 0; half_3 < 2; ++half_3) {
        alignas(16) tf_f16 clamp_2_out[2];
        alignas(16) tf_f16 b2_v[2];
        tf_vector_load<2>(b2_v, b2 + 8 * b_2 + 2 * (lane_of_warp_2 & 3));
        #pragma unroll
        for (int v_19 = 0; v_19 < 2; ++v_19) {
          tf_f16 matmul_2 = tf_f16(matmul_2_sum[32 * a_2 + 4 * b_2 + 2 * half_3 + v_19]);
          tf_f16 add_2 = tf_f16((tf_float(matmul_2) + tf_float(b2_v[v_19])));
          tf_f16 clamp_2_1 = tf_f16(tf_minimum(tf_maximum(tf_float(add_2), 0.0f), 3.0f));
          clamp_2_out[v_19] = clamp_2_1;
        }
        tf_vector_store<2>(clamp_2 + 1024 * a_2 + 8 * b_2 + 8192 * block + 512 * half_3 + 2048 * warp_3 + 2 * (lane_of_warp_2 & 3) + 64 * (lane_of_warp_2 >> 2), clamp_2_out);
      }
    }
  }
}
