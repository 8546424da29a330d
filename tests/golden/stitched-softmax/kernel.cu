// k_softmax: 396 blocks of 128 threads, 70656 bytes of shared memory, for sm_90a
// nodes: %matmul, %softmax_max, %softmax_exp, %softmax_sum, %softmax_inverse, %softmax
// schedule: x [GRID-CTA_64,CTA_64]S; w [CTA_64,CTA_128]S; matmul [GRID-CTA_64,CTA_128,WARP]; softmax_max [GRID-CTA_64,WARP]; softmax_exp [GRID-CTA_64,CTA_128,WARP]; softmax_sum [GRID-CTA_64,WARP]; softmax_inverse [GRID-CTA_64,WARP]; softmax [GRID-CTA_64,CTA_128,WARP]; tile_0=64; tile_1=128; groups=396; cta_num=396; cta_size=128;
// reads 25198592 bytes, writes 50331648 bytes
// shared memory: 70656 bytes allocated, 70656 requested
extern "C" __global__ void __launch_bounds__(128, 3)
k_softmax(
    const float* __restrict__ x,
    const float* __restrict__ w,
    float* __restrict__ softmax) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const x_tile = reinterpret_cast<float*>(tf_shared);  // %x
  float* const w_tile = reinterpret_cast<float*>(tf_shared + 36864);  // %w
  tf_wait_for_earlier_kernel();
  // %w: copy -> shared memory
  for (int step = 0; step < 16; ++step) {
    const int item = 128 * step + thread;
    const int x_1 = (item & 31);
    const int i0 = (item >> 5);
    tf_async_copy<16>(w_tile + 132 * i0 + 4 * x_1, w + 128 * i0 + 4 * x_1);
  }
  // %x: copy -> shared memory
  for (int step_1 = 0; step_1 < 8; ++step_1) {
    const int item_1 = 128 * step_1 + thread;
    const int x_2 = (item_1 & 15);
    const int i0_1 = (item_1 >> 4);
    tf_async_copy<16>(x_tile + 72 * i0_1 + 4 * x_2, x + 4096 * block + 64 * i0_1 + 4 * x_2);
  }
  for (int turn = 0; turn < 4; ++turn) {
    const int tile = block + 396 * turn;
    if (tile < 1536) {
      tf_async_group();
      tf_async_wait<0>();
      __syncthreads();
      const int following = block + 396 * turn + 396;
      if (following < 1536) {
        const int next_buffer = ((turn + 1) & 1);
        // %x: copy -> shared memory
        for (int step_2 = 0; step_2 < 8; ++step_2) {
          const int item_2 = 128 * step_2 + thread;
          const int x_3 = (item_2 & 15);
          const int i0_2 = (item_2 >> 4);
          tf_async_copy<16>(x_tile + 72 * i0_2 + 4608 * next_buffer + 4 * x_3, x + 4096 * following + 64 * i0_2 + 4 * x_3);
        }
      }
      const int buffer = (turn & 1);
      // %matmul, %softmax_max, %softmax_exp, %softmax_sum, %softmax_inverse, %softmax: product -> global memory
      const int warp_1 = (thread >> 5);
      const int lane_of_warp = (thread & 31);
      // %matmul: the warp's tile on the matrix unit
      alignas(16) float matmul_sum[64];
      #pragma unroll
      for (int n = 0; n < 64; ++n) {
        matmul_sum[n] = 0.0f;
      }
      tf_f32_product<3, 1, 16, false, false, true, false, false, 128, 64>(matmul_sum, x_tile + 4608 * buffer + 1152 * warp_1, 72, w_tile, 132);
      alignas(16) float matmul[64];
      #pragma unroll
      for (int b = 0; b < 16; ++b) {
        #pragma unroll
        for (int half_1 = 0; half_1 < 2; ++half_1) {
          alignas(16) float matmul_out[2];
          #pragma unroll
          for (int v_4 = 0; v_4 < 2; ++v_4) {
            matmul_out[v_4] = matmul_sum[4 * b + 2 * half_1 + v_4];
          }
          matmul[4 * b + 2 * half_1] = matmul_out[0];
          matmul[4 * b + 2 * half_1 + 1] = matmul_out[1];
        }
      }
      alignas(16) float softmax_max[2];
      #pragma unroll
      for (int half_2 = 0; half_2 < 2; ++half_2) {
        softmax_max[half_2] = (-tf_inf_f32());
      }
      #pragma unroll
      for (int b_1 = 0; b_1 < 16; ++b_1) {
        #pragma unroll
        for (int half_3 = 0; half_3 < 2; ++half_3) {
          softmax_max[half_3] = tf_maximum(softmax_max[half_3], matmul[4 * b_1 + 2 * half_3]);
          softmax_max[half_3] = tf_maximum(softmax_max[half_3], matmul[4 * b_1 + 2 * half_3 + 1]);
        }
      }
      #pragma unroll
      for (int half_4 = 0; half_4 < 2; ++half_4) {
        float softmax_max_other;
        softmax_max_other = tf_shuffle_xor<0xffffffffu>(softmax_max[half_4], 2, 32);
        softmax_max[half_4] = tf_maximum(softmax_max[half_4], softmax_max_other);
      }
      #pragma unroll
      for (int half_5 = 0; half_5 < 2; ++half_5) {
        float softmax_max_other_1;
        softmax_max_other_1 = tf_shuffle_xor<0xffffffffu>(softmax_max[half_5], 1, 32);
        softmax_max[half_5] = tf_maximum(softmax_max[half_5], softmax_max_other_1);
      }
      alignas(16) float softmax_max_all[2];
      #pragma unroll
      for (int half_6 = 0; half_6 < 2; ++half_6) {
        softmax_max_all[half_6] = 0.0f;
      }
      #pragma unroll
      for (int half_7 = 0; half_7 < 2; ++half_7) {
        softmax_max_all[half_7] = softmax_max[half_7];
      }
      alignas(16) float softmax_exp[64];
      #pragma unroll
      for (int b_2 = 0; b_2 < 16; ++b_2) {
        #pragma unroll
        for (int half_8 = 0; half_8 < 2; ++half_8) {
          alignas(16) float softmax_exp_out[2];
          #pragma unroll
          for (int v_7 = 0; v_7 < 2; ++v_7) {
            float softmax_exp_1 = expf((matmul[4 * b_2 + 2 * half_8 + v_7] - softmax_max_all[half_8]));
            softmax_exp_out[v_7] = softmax_exp_1;
          }
          softmax_exp[4 * b_2 + 2 * half_8] = softmax_exp_out[0];
          softmax_exp[4 * b_2 + 2 * half_8 + 1] = softmax_exp_out[1];
        }
      }
      alignas(16) float softmax_sum[2];
      #pragma unroll
      for (int half_9 = 0; half_9 < 2; ++half_9) {
        softmax_sum[half_9] = 0.0f;
      }
      #pragma unroll
      for (int b_3 = 0; b_3 < 16; ++b_3) {
        #pragma unroll
        for (int half_10 = 0; half_10 < 2; ++half_10) {
          softmax_sum[half_10] = (softmax_sum[half_10] + softmax_exp[4 * b_3 + 2 * half_10]);
          softmax_sum[half_10] = (softmax_sum[half_10] + softmax_exp[4 * b_3 + 2 * half_10 + 1]);
        }
      }
      #pragma unroll
      for (int half_11 = 0; half_11 < 2; ++half_11) {
        float softmax_sum_other;
        softmax_sum_other = tf_shuffle_xor<0xffffffffu>(softmax_sum[half_11], 2, 32);
        softmax_sum[half_11] = (softmax_sum[half_11] + softmax_sum_other);
      }
      #pragma unroll
      for (int half_12 = 0; half_12 < 2; ++half_12) {
        float softmax_sum_other_1;
        softmax_sum_other_1 = tf_shuffle_xor<0xffffffffu>(softmax_sum[half_12], 1, 32);
        softmax_sum[half_12] = (softmax_sum[half_12] + softmax_sum_other_1);
      }
      alignas(16) float softmax_sum_all[2];
      #pragma unroll
      for (int half_13 = 0; half_13 < 2; ++half_13) {
        softmax_sum_all[half_13] = 0.0f;
      }
      #pragma unroll
      for (int half_14 = 0; half_14 < 2; ++half_14) {
        softmax_sum_all[half_14] = softmax_sum[half_14];
      }
      alignas(16) float softmax_inverse[2];
      #pragma unroll
      for (int half_15 = 0; half_15 < 2; ++half_15) {
        softmax_inverse[half_15] = 0.0f;
      }
      #pragma unroll
      for (int half_16 = 0; half_16 < 2; ++half_16) {
        softmax_inverse[half_16] = (1.0f / softmax_sum_all[half_16]);
      }
      alignas(16) float softmax_1[64];
      #pragma unroll
      for (int b_4 = 0; b_4 < 16; ++b_4) {
        #pragma unroll
        for (int half_17 = 0; half_17 < 2; ++half_17) {
          alignas(16) float softmax_out[2];
          #pragma unroll
          for (int v_10 = 0; v_10 < 2; ++v_10) {
            float softmax_2 = (softmax_exp[4 * b_4 + 2 * half_17 + v_10] * softmax_inverse[half_17]);
            softmax_out[v_10] = softmax_2;
          }
          tf_vector_store<2>(softmax + 8 * b_4 + 1024 * half_17 + 2 * lane_of_warp + 8192 * tile + 2048 * warp_1 + 120 * (lane_of_warp >> 2), softmax_out);
          softmax_1[4 * b_4 + 2 * half_17] = softmax_out[0];
          softmax_1[4 * b_4 + 2 * half_17 + 1] = softmax_out[1];
        }
      }
    }
  }
}
