// k_add_1_mul_2: 128 blocks of 256 threads, 41600 bytes of shared memory, for sm_90a
// nodes: %matmul, %add, %sigmoid, %sigmoid_1, %sigmoid_2, %mul, %tanh, %mul_1, %add_1, %tanh_1, %mul_2
// schedule: h [GRID-CTA_8,CTA_256]S; w [GRID-CTA_8,CTA_256]S; w [GRID-CTA_8,CTA_256]S; w [GRID-CTA_8,CTA_256]S; w [GRID-CTA_8,CTA_256]S; add_1 [GRID-CTA_8,GRID-CTA_8,WARP]; mul_2 [GRID-CTA_8,GRID-CTA_8,WARP]; tile_0=8; tile_1=8; cta_num=128; cta_size=256;
// reads 1245184 bytes, writes 65536 bytes
// shared memory: 41600 bytes allocated, 41600 requested
extern "C" __global__ void __launch_bounds__(256, 1)
k_add_1_mul_2(
    const float* __restrict__ h,
    const float* __restrict__ w,
    const float* __restrict__ g,
    const float* __restrict__ c,
    float* __restrict__ add_1,
    float* __restrict__ mul_2) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const h_tile = reinterpret_cast<float*>(tf_shared);  // %h
  float* const w_tile = reinterpret_cast<float*>(tf_shared + 33280);  // %w
  float* const w_tile_1 = reinterpret_cast<float*>(tf_shared + 8320);  // %w
  float* const w_tile_2 = reinterpret_cast<float*>(tf_shared + 16640);  // %w
  float* const w_tile_3 = reinterpret_cast<float*>(tf_shared + 24960);  // %w
  tf_wait_for_earlier_kernel();
  const int tile1 = (block & 31);
  const int tile0 = (block >> 5);
  // %h: copy -> shared memory
  #pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int item = 256 * step + thread;
    const int x = (item & 63);
    const int i0 = (item >> 6);
    tf_async_copy<16>(h_tile + 260 * i0 + 4 * x, h + 256 * i0 + 2048 * tile0 + 4 * x);
  }
  // %w: copy -> shared memory
  #pragma unroll
  for (int step_1 = 0; step_1 < 2; ++step_1) {
    const int item_1 = 256 * step_1 + thread;
    const int x_1 = (item_1 & 63);
    const int i0_1 = (item_1 >> 6);
    tf_async_copy<16>(w_tile_1 + 260 * i0_1 + 4 * x_1, w + 256 * i0_1 + 2048 * tile1 + 4 * x_1 + 65536);
  }
  // %w: copy -> shared memory
  #pragma unroll
  for (int step_2 = 0; step_2 < 2; ++step_2) {
    const int item_2 = 256 * step_2 + thread;
    const int x_2 = (item_2 & 63);
    const int i0_2 = (item_2 >> 6);
    tf_async_copy<16>(w_tile_2 + 260 * i0_2 + 4 * x_2, w + 256 * i0_2 + 2048 * tile1 + 4 * x_2);
  }
  // %w: copy -> shared memory
  #pragma unroll
  for (int step_3 = 0; step_3 < 2; ++step_3) {
    const int item_3 = 256 * step_3 + thread;
    const int x_3 = (item_3 & 63);
    const int i0_3 = (item_3 >> 6);
    tf_async_copy<16>(w_tile_3 + 260 * i0_3 + 4 * x_3, w + 256 * i0_3 + 2048 * tile1 + 4 * x_3 + 131072);
  }
  // %w: copy -> shared memory
  #pragma unroll
  for (int step_4 = 0; step_4 < 2; ++step_4) {
    const int item_4 = 256 * step_4 + thread;
    const int x_4 = (item_4 & 63);
    const int i0_4 = (item_4 >> 6);
    tf_async_copy<16>(w_tile + 260 * i0_4 + 4 * x_4, w + 256 * i0_4 + 2048 * tile1 + 4 * x_4 + 196608);
  }
  tf_async_group();
  float g_at_ahead;
  float c_at_ahead;
  float g_at_1_ahead;
  float g_at_2_ahead;
  float g_at_3_ahead;
  const int row = (thread >> 5);
  const int tile_row = (row >> 1);
  const int tile_column = (row & 1);
  const int mine = ((thread >> 2) & 7);
  if ((thread & 3) < 1) {
    g_at_ahead = g[mine + 8192 * tile0 + 8 * tile1 + 4 * tile_column + 2048 * tile_row + 1020 * (mine >> 2) + 256];
    c_at_ahead = c[mine + 2048 * tile0 + 8 * tile1 + 4 * tile_column + 512 * tile_row + 252 * (mine >> 2)];
    g_at_1_ahead = g[mine + 8192 * tile0 + 8 * tile1 + 4 * tile_column + 2048 * tile_row + 1020 * (mine >> 2)];
    g_at_2_ahead = g[mine + 8192 * tile0 + 8 * tile1 + 4 * tile_column + 2048 * tile_row + 1020 * (mine >> 2) + 512];
    g_at_3_ahead = g[mine + 8192 * tile0 + 8 * tile1 + 4 * tile_column + 2048 * tile_row + 1020 * (mine >> 2) + 768];
  }
  tf_async_wait<0>();
  __syncthreads();
  // %add_1, %mul_2: product, %matmul, %matmul, %matmul, %matmul in registers -> global memory
  alignas(16) float matmul_sum[8];
  #pragma unroll
  for (int n = 0; n < 8; ++n) {
    matmul_sum[n] = 0.0f;
  }
  alignas(16) float matmul_sum_1[8];
  #pragma unroll
  for (int n_1 = 0; n_1 < 8; ++n_1) {
    matmul_sum_1[n_1] = 0.0f;
  }
  alignas(16) float matmul_sum_2[8];
  #pragma unroll
  for (int n_2 = 0; n_2 < 8; ++n_2) {
    matmul_sum_2[n_2] = 0.0f;
  }
  alignas(16) float matmul_sum_3[8];
  #pragma unroll
  for (int n_3 = 0; n_3 < 8; ++n_3) {
    matmul_sum_3[n_3] = 0.0f;
  }
  for (int c_1 = 0; c_1 < 2; ++c_1) {
    const int chunk = 32 * c_1 + (thread & 31);
    alignas(16) float h_left[8];
    #pragma unroll
    for (int n_4_1 = 0; n_4_1 < 2; ++n_4_1) {
      tf_vector_load<4>(h_left + 4 * n_4_1, h_tile + 4 * chunk + 260 * n_4_1 + 520 * tile_row);
    }
    alignas(16) float w_right[16];
    #pragma unroll
    for (int n_5_1 = 0; n_5_1 < 4; ++n_5_1) {
      tf_vector_load<4>(w_right + 4 * n_5_1, w_tile_1 + 4 * chunk + 260 * n_5_1 + 1040 * tile_column);
    }
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        matmul_sum[4 * i + j] = fmaf(h_left[4 * i], w_right[4 * j], matmul_sum[4 * i + j]);
      }
    }
    #pragma unroll
    for (int i_1 = 0; i_1 < 2; ++i_1) {
      #pragma unroll
      for (int j_1 = 0; j_1 < 4; ++j_1) {
        matmul_sum[4 * i_1 + j_1] = fmaf(h_left[4 * i_1 + 1], w_right[4 * j_1 + 1], matmul_sum[4 * i_1 + j_1]);
      }
    }
    #pragma unroll
    for (int i_2 = 0; i_2 < 2; ++i_2) {
      #pragma unroll
      for (int j_2 = 0; j_2 < 4; ++j_2) {
        matmul_sum[4 * i_2 + j_2] = fmaf(h_left[4 * i_2 + 2], w_right[4 * j_2 + 2], matmul_sum[4 * i_2 + j_2]);
      }
    }
    #pragma unroll
    for (int i_3 = 0; i_3 < 2; ++i_3) {
      #pragma unroll
      for (int j_3 = 0; j_3 < 4; ++j_3) {
        matmul_sum[4 * i_3 + j_3] = fmaf(h_left[4 * i_3 + 3], w_right[4 * j_3 + 3], matmul_sum[4 * i_3 + j_3]);
      }
    }
    alignas(16) float h_left_1[8];
    #pragma unroll
    for (int n_6_1 = 0; n_6_1 < 2; ++n_6_1) {
      tf_vector_load<4>(h_left_1 + 4 * n_6_1, h_tile + 4 * chunk + 260 * n_6_1 + 520 * tile_row);
    }
    alignas(16) float w_right_1[16];
    #pragma unroll
    for (int n_7_1 = 0; n_7_1 < 4; ++n_7_1) {
      tf_vector_load<4>(w_right_1 + 4 * n_7_1, w_tile_2 + 4 * chunk + 260 * n_7_1 + 1040 * tile_column);
    }
    #pragma unroll
    for (int i_4 = 0; i_4 < 2; ++i_4) {
      #pragma unroll
      for (int j_4 = 0; j_4 < 4; ++j_4) {
        matmul_sum_1[4 * i_4 + j_4] = fmaf(h_left_1[4 * i_4], w_right_1[4 * j_4], matmul_sum_1[4 * i_4 + j_4]);
      }
    }
    #pragma unroll
    for (int i_5 = 0; i_5 < 2; ++i_5) {
      #pragma unroll
      for (int j_5 = 0; j_5 < 4; ++j_5) {
        matmul_sum_1[4 * i_5 + j_5] = fmaf(h_left_1[4 * i_5 + 1], w_right_1[4 * j_5 + 1], matmul_sum_1[4 * i_5 + j_5]);
      }
    }
    #pragma unroll
    for (int i_6 = 0; i_6 < 2; ++i_6) {
      #pragma unroll
      for (int j_6 = 0; j_6 < 4; ++j_6) {
        matmul_sum_1[4 * i_6 + j_6] = fmaf(h_left_1[4 * i_6 + 2], w_right_1[4 * j_6 + 2], matmul_sum_1[4 * i_6 + j_6]);
      }
    }
    #pragma unroll
    for (int i_7 = 0; i_7 < 2; ++i_7) {
      #pragma unroll
      for (int j_7 = 0; j_7 < 4; ++j_7) {
        matmul_sum_1[4 * i_7 + j_7] = fmaf(h_left_1[4 * i_7 + 3], w_right_1[4 * j_7 + 3], matmul_sum_1[4 * i_7 + j_7]);
      }
    }
    alignas(16) float h_left_2[8];
    #pragma unroll
    for (int n_8_1 = 0; n_8_1 < 2; ++n_8_1) {
      tf_vector_load<4>(h_left_2 + 4 * n_8_1, h_tile + 4 * chunk + 260 * n_8_1 + 520 * tile_row);
    }
    alignas(16) float w_right_2[16];
    #pragma unroll
    for (int n_9_1 = 0; n_9_1 < 4; ++n_9_1) {
      tf_vector_load<4>(w_right_2 + 4 * n_9_1, w_tile_3 + 4 * chunk + 260 * n_9_1 + 1040 * tile_column);
    }
    #pragma unroll
    for (int i_8 = 0; i_8 < 2; ++i_8) {
      #pragma unroll
      for (int j_8 = 0; j_8 < 4; ++j_8) {
        matmul_sum_2[4 * i_8 + j_8] = fmaf(h_left_2[4 * i_8], w_right_2[4 * j_8], matmul_sum_2[4 * i_8 + j_8]);
      }
    }
    #pragma unroll
    for (int i_9 = 0; i_9 < 2; ++i_9) {
      #pragma unroll
      for (int j_9 = 0; j_9 < 4; ++j_9) {
        matmul_sum_2[4 * i_9 + j_9] = fmaf(h_left_2[4 * i_9 + 1], w_right_2[4 * j_9 + 1], matmul_sum_2[4 * i_9 + j_9]);
      }
    }
    #pragma unroll
    for (int i_10 = 0; i_10 < 2; ++i_10) {
      #pragma unroll
      for (int j_10 = 0; j_10 < 4; ++j_10) {
        matmul_sum_2[4 * i_10 + j_10] = fmaf(h_left_2[4 * i_10 + 2], w_right_2[4 * j_10 + 2], matmul_sum_2[4 * i_10 + j_10]);
      }
    }
    #pragma unroll
    for (int i_11 = 0; i_11 < 2; ++i_11) {
      #pragma unroll
      for (int j_11 = 0; j_11 < 4; ++j_11) {
        matmul_sum_2[4 * i_11 + j_11] = fmaf(h_left_2[4 * i_11 + 3], w_right_2[4 * j_11 + 3], matmul_sum_2[4 * i_11 + j_11]);
      }
    }
    alignas(16) float h_left_3[8];
    #pragma unroll
    for (int n_10_1 = 0; n_10_1 < 2; ++n_10_1) {
      tf_vector_load<4>(h_left_3 + 4 * n_10_1, h_tile + 4 * chunk + 260 * n_10_1 + 520 * tile_row);
    }
    alignas(16) float w_right_3[16];
    #pragma unroll
    for (int n_11_1 = 0; n_11_1 < 4; ++n_11_1) {
      tf_vector_load<4>(w_right_3 + 4 * n_11_1, w_tile + 4 * chunk + 260 * n_11_1 + 1040 * tile_column);
    }
    #pragma unroll
    for (int i_12 = 0; i_12 < 2; ++i_12) {
      #pragma unroll
      for (int j_12 = 0; j_12 < 4; ++j_12) {
        matmul_sum_3[4 * i_12 + j_12] = fmaf(h_left_3[4 * i_12], w_right_3[4 * j_12], matmul_sum_3[4 * i_12 + j_12]);
      }
    }
    #pragma unroll
    for (int i_13 = 0; i_13 < 2; ++i_13) {
      #pragma unroll
      for (int j_13 = 0; j_13 < 4; ++j_13) {
        matmul_sum_3[4 * i_13 + j_13] = fmaf(h_left_3[4 * i_13 + 1], w_right_3[4 * j_13 + 1], matmul_sum_3[4 * i_13 + j_13]);
      }
    }
    #pragma unroll
    for (int i_14 = 0; i_14 < 2; ++i_14) {
      #pragma unroll
      for (int j_14 = 0; j_14 < 4; ++j_14) {
        matmul_sum_3[4 * i_14 + j_14] = fmaf(h_left_3[4 * i_14 + 2], w_right_3[4 * j_14 + 2], matmul_sum_3[4 * i_14 + j_14]);
      }
    }
    #pragma unroll
    for (int i_15 = 0; i_15 < 2; ++i_15) {
      #pragma unroll
      for (int j_15 = 0; j_15 < 4; ++j_15) {
        matmul_sum_3[4 * i_15 + j_15] = fmaf(h_left_3[4 * i_15 + 3], w_right_3[4 * j_15 + 3], matmul_sum_3[4 * i_15 + j_15]);
      }
    }
  }
  float matmul_sum_other;
  float matmul_sum_given;
  #pragma unroll
  for (int n_12 = 0; n_12 < 4; ++n_12) {
    matmul_sum_given = (((thread >> 4) & 1) >= 1 ? matmul_sum[n_12] : matmul_sum[n_12 + 4]);
    matmul_sum[n_12] = (((thread >> 4) & 1) >= 1 ? matmul_sum[n_12 + 4] : matmul_sum[n_12]);
    matmul_sum_other = tf_shuffle_xor<0xffffffffu>(matmul_sum_given, 16, 32);
    matmul_sum[n_12] = (matmul_sum[n_12] + matmul_sum_other);
  }
  float matmul_sum_other_1;
  float matmul_sum_given_1;
  #pragma unroll
  for (int n_13 = 0; n_13 < 2; ++n_13) {
    matmul_sum_given_1 = (((thread >> 3) & 1) >= 1 ? matmul_sum[n_13] : matmul_sum[n_13 + 2]);
    matmul_sum[n_13] = (((thread >> 3) & 1) >= 1 ? matmul_sum[n_13 + 2] : matmul_sum[n_13]);
    matmul_sum_other_1 = tf_shuffle_xor<0xffffffffu>(matmul_sum_given_1, 8, 32);
    matmul_sum[n_13] = (matmul_sum[n_13] + matmul_sum_other_1);
  }
  float matmul_sum_other_2;
  float matmul_sum_given_2;
  matmul_sum_given_2 = (((thread >> 2) & 1) >= 1 ? matmul_sum[0] : matmul_sum[1]);
  matmul_sum[0] = (((thread >> 2) & 1) >= 1 ? matmul_sum[1] : matmul_sum[0]);
  matmul_sum_other_2 = tf_shuffle_xor<0xffffffffu>(matmul_sum_given_2, 4, 32);
  matmul_sum[0] = (matmul_sum[0] + matmul_sum_other_2);
  float matmul_sum_other_3;
  matmul_sum_other_3 = tf_shuffle_xor<0xffffffffu>(matmul_sum[0], 2, 32);
  matmul_sum[0] = (matmul_sum[0] + matmul_sum_other_3);
  float matmul_sum_other_4;
  matmul_sum_other_4 = tf_shuffle_xor<0xffffffffu>(matmul_sum[0], 1, 32);
  matmul_sum[0] = (matmul_sum[0] + matmul_sum_other_4);
  float matmul_sum_1_other;
  float matmul_sum_1_given;
  #pragma unroll
  for (int n_14 = 0; n_14 < 4; ++n_14) {
    matmul_sum_1_given = (((thread >> 4) & 1) >= 1 ? matmul_sum_1[n_14] : matmul_sum_1[n_14 + 4]);
    matmul_sum_1[n_14] = (((thread >> 4) & 1) >= 1 ? matmul_sum_1[n_14 + 4] : matmul_sum_1[n_14]);
    matmul_sum_1_other = tf_shuffle_xor<0xffffffffu>(matmul_sum_1_given, 16, 32);
    matmul_sum_1[n_14] = (matmul_sum_1[n_14] + matmul_sum_1_other);
  }
  float matmul_sum_1_other_1;
  float matmul_sum_1_given_1;
  #pragma unroll
  for (int n_15 = 0; n_15 < 2; ++n_15) {
    matmul_sum_1_given_1 = (((thread >> 3) & 1) >= 1 ? matmul_sum_1[n_15] : matmul_sum_1[n_15 + 2]);
    matmul_sum_1[n_15] = (((thread >> 3) & 1) >= 1 ? matmul_sum_1[n_15 + 2] : matmul_sum_1[n_15]);
    matmul_sum_1_other_1 = tf_shuffle_xor<0xffffffffu>(matmul_sum_1_given_1, 8, 32);
    matmul_sum_1[n_15] = (matmul_sum_1[n_15] + matmul_sum_1_other_1);
  }
  float matmul_sum_1_other_2;
  float matmul_sum_1_given_2;
  matmul_sum_1_given_2 = (((thread >> 2) & 1) >= 1 ? matmul_sum_1[0] : matmul_sum_1[1]);
  matmul_sum_1[0] = (((thread >> 2) & 1) >= 1 ? matmul_sum_1[1] : matmul_sum_1[0]);
  matmul_sum_1_other_2 = tf_shuffle_xor<0xffffffffu>(matmul_sum_1_given_2, 4, 32);
  matmul_sum_1[0] = (matmul_sum_1[0] + matmul_sum_1_other_2);
  float matmul_sum_1_other_3;
  matmul_sum_1_other_3 = tf_shuffle_xor<0xffffffffu>(matmul_sum_1[0], 2, 32);
  matmul_sum_1[0] = (matmul_sum_1[0] + matmul_sum_1_other_3);
  float matmul_sum_1_other_4;
  matmul_sum_1_other_4 = tf_shuffle_xor<0xffffffffu>(matmul_sum_1[0], 1, 32);
  matmul_sum_1[0] = (matmul_sum_1[0] + matmul_sum_1_other_4);
  float matmul_sum_2_other;
  float matmul_sum_2_given;
  #pragma unroll
  for (int n_16 = 0; n_16 < 4; ++n_16) {
    matmul_sum_2_given = (((thread >> 4) & 1) >= 1 ? matmul_sum_2[n_16] : matmul_sum_2[n_16 + 4]);
    matmul_sum_2[n_16] = (((thread >> 4) & 1) >= 1 ? matmul_sum_2[n_16 + 4] : matmul_sum_2[n_16]);
    matmul_sum_2_other = tf_shuffle_xor<0xffffffffu>(matmul_sum_2_given, 16, 32);
    matmul_sum_2[n_16] = (matmul_sum_2[n_16] + matmul_sum_2_other);
  }
  float matmul_sum_2_other_1;
  float matmul_sum_2_given_1;
  #pragma unroll
  for (int n_17 = 0; n_17 < 2; ++n_17) {
    matmul_sum_2_given_1 = (((thread >> 3) & 1) >= 1 ? matmul_sum_2[n_17] : matmul_sum_2[n_17 + 2]);
    matmul_sum_2[n_17] = (((thread >> 3) & 1) >= 1 ? matmul_sum_2[n_17 + 2] : matmul_sum_2[n_17]);
    matmul_sum_2_other_1 = tf_shuffle_xor<0xffffffffu>(matmul_sum_2_given_1, 8, 32);
    matmul_sum_2[n_17] = (matmul_sum_2[n_17] + matmul_sum_2_other_1);
  }
  float matmul_sum_2_other_2;
  float matmul_sum_2_given_2;
  matmul_sum_2_given_2 = (((thread >> 2) & 1) >= 1 ? matmul_sum_2[0] : matmul_sum_2[1]);
  matmul_sum_2[0] = (((thread >> 2) & 1) >= 1 ? matmul_sum_2[1] : matmul_sum_2[0]);
  matmul_sum_2_other_2 = tf_shuffle_xor<0xffffffffu>(matmul_sum_2_given_2, 4, 32);
  matmul_sum_2[0] = (matmul_sum_2[0] + matmul_sum_2_other_2);
  float matmul_sum_2_other_3;
  matmul_sum_2_other_3 = tf_shuffle_xor<0xffffffffu>(matmul_sum_2[0], 2, 32);
  matmul_sum_2[0] = (matmul_sum_2[0] + matmul_sum_2_other_3);
  float matmul_sum_2_other_4;
  matmul_sum_2_other_4 = tf_shuffle_xor<0xffffffffu>(matmul_sum_2[0], 1, 32);
  matmul_sum_2[0] = (matmul_sum_2[0] + matmul_sum_2_other_4);
  float matmul_sum_3_other;
  float matmul_sum_3_given;
  #pragma unroll
  for (int n_18 = 0; n_18 < 4; ++n_18) {
    matmul_sum_3_given = (((thread >> 4) & 1) >= 1 ? matmul_sum_3[n_18] : matmul_sum_3[n_18 + 4]);
    matmul_sum_3[n_18] = (((thread >> 4) & 1) >= 1 ? matmul_sum_3[n_18 + 4] : matmul_sum_3[n_18]);
    matmul_sum_3_other = tf_shuffle_xor<0xffffffffu>(matmul_sum_3_given, 16, 32);
    matmul_sum_3[n_18] = (matmul_sum_3[n_18] + matmul_sum_3_other);
  }
  float matmul_sum_3_other_1;
  float matmul_sum_3_given_1;
  #pragma unroll
  for (int n_19 = 0; n_19 < 2; ++n_19) {
    matmul_sum_3_given_1 = (((thread >> 3) & 1) >= 1 ? matmul_sum_3[n_19] : matmul_sum_3[n_19 + 2]);
    matmul_sum_3[n_19] = (((thread >> 3) & 1) >= 1 ? matmul_sum_3[n_19 + 2] : matmul_sum_3[n_19]);
    matmul_sum_3_other_1 = tf_shuffle_xor<0xffffffffu>(matmul_sum_3_given_1, 8, 32);
    matmul_sum_3[n_19] = (matmul_sum_3[n_19] + matmul_sum_3_other_1);
  }
  float matmul_sum_3_other_2;
  float matmul_sum_3_given_2;
  matmul_sum_3_given_2 = (((thread >> 2) & 1) >= 1 ? matmul_sum_3[0] : matmul_sum_3[1]);
  matmul_sum_3[0] = (((thread >> 2) & 1) >= 1 ? matmul_sum_3[1] : matmul_sum_3[0]);
  matmul_sum_3_other_2 = tf_shuffle_xor<0xffffffffu>(matmul_sum_3_given_2, 4, 32);
  matmul_sum_3[0] = (matmul_sum_3[0] + matmul_sum_3_other_2);
  float matmul_sum_3_other_3;
  matmul_sum_3_other_3 = tf_shuffle_xor<0xffffffffu>(matmul_sum_3[0], 2, 32);
  matmul_sum_3[0] = (matmul_sum_3[0] + matmul_sum_3_other_3);
  float matmul_sum_3_other_4;
  matmul_sum_3_other_4 = tf_shuffle_xor<0xffffffffu>(matmul_sum_3[0], 1, 32);
  matmul_sum_3[0] = (matmul_sum_3[0] + matmul_sum_3_other_4);
  if ((thread & 3) < 1) {
    float g_at = g_at_ahead;
    float add = (matmul_sum[0] + g_at);
    float sigmoid_1 = tf_sigmoid(add);
    float c_at = c_at_ahead;
    float mul = (sigmoid_1 * c_at);
    float g_at_1 = g_at_1_ahead;
    float add_2 = (matmul_sum_1[0] + g_at_1);
    float sigmoid = tf_sigmoid(add_2);
    float g_at_2 = g_at_2_ahead;
    float add_3 = (matmul_sum_2[0] + g_at_2);
    float tanh_ = tanhf(add_3);
    float mul_1 = (sigmoid * tanh_);
    float add_1_1 = (mul + mul_1);
    add_1[mine + 2048 * tile0 + 8 * tile1 + 4 * tile_column + 512 * tile_row + 252 * (mine >> 2)] = add_1_1;
    float g_at_3 = g_at_3_ahead;
    float add_4 = (matmul_sum_3[0] + g_at_3);
    float sigmoid_2 = tf_sigmoid(add_4);
    float tanh_1 = tanhf(add_1_1);
    float mul_2_1 = (sigmoid_2 * tanh_1);
    mul_2[mine + 2048 * tile0 + 8 * tile1 + 4 * tile_column + 512 * tile_row + 252 * (mine >> 2)] = mul_2_1;
  }
}
