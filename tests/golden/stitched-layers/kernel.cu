// k_clamp_2: 64 blocks of 256 threads, 18432 bytes of shared memory, for sm_90a
// nodes: %matmul, %add, %clamp, %matmul_1, %add_1, %clamp_1, %matmul_2, %add_2, %clamp_2
// schedule: x [GRID-CTA_32,CTA_64]S; w0 [CTA_64,CTA_64]S; clamp [GRID-CTA_32,CTA_64,WARP]S; w1 [CTA_64,CTA_64]S; clamp_1 [GRID-CTA_32,CTA_64,WARP]S; w2 [CTA_64,CTA_64]S; clamp_2 [GRID-CTA_32,CTA_64,WARP]; tile_0=32; tile_1=64; cta_num=64; cta_size=256;
// reads 287104 bytes, writes 262144 bytes
// shared memory: 18432 bytes allocated, 41472 requested
extern "C" __global__ void __launch_bounds__(256, 1)
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
  tf_f16* const clamp_1_tile = reinterpret_cast<tf_f16*>(tf_shared + 9216);  // %clamp_1
  tf_f16* const clamp_tile = reinterpret_cast<tf_f16*>(tf_shared + 13824);  // %clamp
  tf_f16* const x_tile = reinterpret_cast<tf_f16*>(tf_shared + 9216);  // %x
  tf_f16* const w0_tile = reinterpret_cast<tf_f16*>(tf_shared);  // %w0
  tf_f16* const w1_tile = reinterpret_cast<tf_f16*>(tf_shared);  // %w1
  tf_f16* const w2_tile = reinterpret_cast<tf_f16*>(tf_shared);  // %w2
  tf_wait_for_earlier_kernel();
  // %x: copy -> shared memory
  const int x_1 = (thread & 7);
  const int i0 = (thread >> 3);
  tf_async_copy<16>(x_tile + 72 * i0 + 8 * x_1, x + 2048 * block + 64 * i0 + 8 * x_1);
  // %w0: copy -> shared memory
  #pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int item = 256 * step + thread;
    const int x_2 = (item & 7);
    const int i0_1 = (item >> 3);
    tf_async_copy<16>(w0_tile + 72 * i0_1 + 8 * x_2, w0 + 64 * i0_1 + 8 * x_2);
  }
  tf_async_group();
  alignas(16) tf_f16 b0_v_ahead[8];
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  const int tile_row = (warp_1 >> 2);
  const int tile_column = (warp_1 & 3);
  #pragma unroll
  for (int b = 0; b < 2; ++b) {
    #pragma unroll
    for (int half_1 = 0; half_1 < 2; ++half_1) {
      tf_vector_load<2>(b0_v_ahead + 4 * b + 2 * half_1, b0 + 8 * b + 16 * tile_column + 2 * (lane_of_warp & 3));
    }
  }
  tf_async_wait<0>();
  __syncthreads();
  // %clamp: product, %matmul in registers -> shared memory
  // %matmul: the warp's tile on the matrix unit
  alignas(16) float matmul_sum[8];
  #pragma unroll
  for (int n = 0; n < 8; ++n) {
    matmul_sum[n] = 0.0f;
  }
  tf_matrix_product<1, 2, false, true, 64>(matmul_sum, x_tile + 1152 * tile_row, 72, w0_tile + 1152 * tile_column, 72);
  #pragma unroll
  for (int b = 0; b < 2; ++b) {
    #pragma unroll
    for (int half_1 = 0; half_1 < 2; ++half_1) {
      alignas(16) tf_f16 clamp_out[2];
      alignas(16) tf_f16 b0_v[2];
      #pragma unroll
      for (int v_5 = 0; v_5 < 2; ++v_5) {
        b0_v[v_5] = b0_v_ahead[4 * b + 2 * half_1 + v_5];
      }
      #pragma unroll
      for (int v_3 = 0; v_3 < 2; ++v_3) {
        tf_f16 matmul = tf_f16(matmul_sum[4 * b + 2 * half_1 + v_3]);
        tf_f16 add = tf_f16((tf_float(matmul) + tf_float(b0_v[v_3])));
        tf_f16 clamp = tf_f16(tf_minimum(tf_maximum(tf_float(add), 0.0f), 3.0f));
        clamp_out[v_3] = clamp;
      }
      tf_vector_store<2>(clamp_tile + 8 * b + 576 * half_1 + 2 * lane_of_warp + 16 * tile_column + 1152 * tile_row + 64 * (lane_of_warp >> 2), clamp_out);
    }
  }
  __syncthreads();
  // %w1: copy -> shared memory
  #pragma unroll
  for (int step_1 = 0; step_1 < 2; ++step_1) {
    const int item_1 = 256 * step_1 + thread;
    const int x_3 = (item_1 & 7);
    const int i0_2 = (item_1 >> 3);
    tf_async_copy<16>(w1_tile + 72 * i0_2 + 8 * x_3, w1 + 64 * i0_2 + 8 * x_3);
  }
  tf_async_group();
  alignas(16) tf_f16 b1_v_ahead[8];
  const int warp_2 = (thread >> 5);
  const int lane_of_warp_1 = (thread & 31);
  const int tile_row_1 = (warp_2 >> 2);
  const int tile_column_1 = (warp_2 & 3);
  #pragma unroll
  for (int b_1 = 0; b_1 < 2; ++b_1) {
    #pragma unroll
    for (int half_2 = 0; half_2 < 2; ++half_2) {
      tf_vector_load<2>(b1_v_ahead + 4 * b_1 + 2 * half_2, b1 + 8 * b_1 + 16 * tile_column_1 + 2 * (lane_of_warp_1 & 3));
    }
  }
  tf_async_wait<0>();
  __syncthreads();
  // %clamp_1: product, %matmul_1 in registers -> shared memory
  // %matmul_1: the warp's tile on the matrix unit
  alignas(16) float matmul_1_sum[8];
  #pragma unroll
  for (int n_1 = 0; n_1 < 8; ++n_1) {
    matmul_1_sum[n_1] = 0.0f;
  }
  tf_matrix_product<1, 2, false, true, 64>(matmul_1_sum, clamp_tile + 1152 * tile_row_1, 72, w1_tile + 1152 * tile_column_1, 72);
  #pragma unroll
  for (int b_1 = 0; b_1 < 2; ++b_1) {
    #pragma unroll
    for (int half_2 = 0; half_2 < 2; ++half_2) {
      alignas(16) tf_f16 clamp_1_out[2];
      alignas(16) tf_f16 b1_v[2];
      #pragma unroll
      for (int v_10 = 0; v_10 < 2; ++v_10) {
        b1_v[v_10] = b1_v_ahead[4 * b_1 + 2 * half_2 + v_10];
      }
      #pragma unroll
      for (int v_8 = 0; v_8 < 2; ++v_8) {
        tf_f16 matmul_1 = tf_f16(matmul_1_sum[4 * b_1 + 2 * half_2 + v_8]);
        tf_f16 add_1 = tf_f16((tf_float(matmul_1) + tf_float(b1_v[v_8])));
        tf_f16 clamp_1 = tf_f16(tf_minimum(tf_maximum(tf_float(add_1), 0.0f), 3.0f));
        clamp_1_out[v_8] = clamp_1;
      }
      tf_vector_store<2>(clamp_1_tile + 8 * b_1 + 576 * half_2 + 2 * lane_of_warp_1 + 16 * tile_column_1 + 1152 * tile_row_1 + 64 * (lane_of_warp_1 >> 2), clamp_1_out);
    }
  }
  __syncthreads();
  // %w2: copy -> shared memory
  #pragma unroll
  for (int step_2 = 0; step_2 < 2; ++step_2) {
    const int item_2 = 256 * step_2 + thread;
    const int x_4 = (item_2 & 7);
    const int i0_3 = (item_2 >> 3);
    tf_async_copy<16>(w2_tile + 72 * i0_3 + 8 * x_4, w2 + 64 * i0_3 + 8 * x_4);
  }
  tf_async_group();
  alignas(16) tf_f16 b2_v_ahead[8];
  const int warp_3 = (thread >> 5);
  const int lane_of_warp_2 = (thread & 31);
  const int tile_row_2 = (warp_3 >> 2);
  const int tile_column_2 = (warp_3 & 3);
  #pragma unroll
  for (int b_2 = 0; b_2 < 2; ++b_2) {
    #pragma unroll
    for (int half_3 = 0; half_3 < 2; ++half_3) {
      tf_vector_load<2>(b2_v_ahead + 4 * b_2 + 2 * half_3, b2 + 8 * b_2 + 16 * tile_column_2 + 2 * (lane_of_warp_2 & 3));
    }
  }
  tf_async_wait<0>();
  __syncthreads();
  // %clamp_2: product, %matmul_2 in registers -> global memory
  // %matmul_2: the warp's tile on the matrix unit
  alignas(16) float matmul_2_sum[8];
  #pragma unroll
  for (int n_2 = 0; n_2 < 8; ++n_2) {
    matmul_2_sum[n_2] = 0.0f;
  }
  tf_matrix_product<1, 2, false, true, 64>(matmul_2_sum, clamp_1_tile + 1152 * tile_row_2, 72, w2_tile + 1152 * tile_column_2, 72);
  #pragma unroll
  for (int b_2 = 0; b_2 < 2; ++b_2) {
    #pragma unroll
    for (int half_3 = 0; half_3 < 2; ++half_3) {
      alignas(16) tf_f16 clamp_2_out[2];
      alignas(16) tf_f16 b2_v[2];
      #pragma unroll
      for (int v_15 = 0; v_15 < 2; ++v_15) {
        b2_v[v_15] = b2_v_ahead[4 * b_2 + 2 * half_3 + v_15];
      }
      #pragma unroll
      for (int v_13 = 0; v_13 < 2; ++v_13) {
        tf_f16 matmul_2 = tf_f16(matmul_2_sum[4 * b_2 + 2 * half_3 + v_13]);
        tf_f16 add_2 = tf_f16((tf_float(matmul_2) + tf_float(b2_v[v_13])));
        tf_f16 clamp_2_1 = tf_f16(tf_minimum(tf_maximum(tf_float(add_2), 0.0f), 3.0f));
        clamp_2_out[v_13] = clamp_2_1;
      }
      tf_vector_store<2>(clamp_2 + 8 * b_2 + 2048 * block + 512 * half_3 + 16 * tile_column_2 + 1024 * tile_row_2 + 2 * (lane_of_warp_2 & 3) + 64 * (lane_of_warp_2 >> 2), clamp_2_out);
    }
  }
}
