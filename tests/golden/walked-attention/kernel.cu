// k_matmul_1: 2048 blocks of 128 threads, 36864 bytes of shared memory, for sm_90a
// nodes: %matmul, %mul, %where, %softmax_max, %softmax_exp, %softmax_sum, %softmax_inverse, %softmax, %matmul_1
// schedule: matmul [GRID,GRID-CTA_128,LOOP_64-WARP]R; softmax_max [GRID,GRID-CTA_128,LOOP_64-WARP]W; softmax_sum [GRID,GRID-CTA_128,LOOP_64-WARP]W; softmax [GRID,GRID-CTA_128,LOOP_64-WARP]R; matmul_1 [GRID,GRID-CTA_128,WARP,LOOP_64]RG; stages=2; cta_num=2048; cta_size=128;
// reads 100663296 bytes, writes 33554432 bytes
// shared memory: 36864 bytes allocated
extern "C" __global__ void __launch_bounds__(128, 1)
k_matmul_1(
    const tf_f16* __restrict__ q,
    const tf_f16* __restrict__ k,
    const tf_f16* __restrict__ v,
    tf_f16* __restrict__ matmul_1) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  tf_f16* const k_tile = reinterpret_cast<tf_f16*>(tf_shared);  // %k
  tf_f16* const v_tile = reinterpret_cast<tf_f16*>(tf_shared + 18432);  // %v
  tf_wait_for_earlier_kernel();
  const int row_tile = (block & 31);
  const int lead = (block >> 5);
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  // %q: the warp's rows in registers, as left fragments
  alignas(16) tf_f16 q_held[64];
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    #pragma unroll
    for (int g = 0; g < 8; ++g) {
      tf_vector_load<2>(q_held + 4 * g + 2 * (i & 1) + 32 * (i >> 1), q + 8 * g + 512 * i + 2 * lane_of_warp + 262144 * lead + 8192 * row_tile + 2048 * warp_1 + 56 * (lane_of_warp >> 2));
    }
  }
  alignas(16) float softmax_max_so_far[4];
  #pragma unroll
  for (int n = 0; n < 4; ++n) {
    softmax_max_so_far[n] = (-tf_inf_f32());
  }
  alignas(16) float softmax_sum_so_far[4];
  #pragma unroll
  for (int n_1 = 0; n_1 < 4; ++n_1) {
    softmax_sum_so_far[n_1] = 0.0f;
  }
  alignas(16) float matmul_1_so_far[64];
  #pragma unroll
  for (int n_2 = 0; n_2 < 64; ++n_2) {
    matmul_1_so_far[n_2] = 0.0f;
  }
  // %softmax_max: softmax_max_negated is 0.36067376 times the negated maximum that powers are relative to
  alignas(16) float softmax_max_negated[4];
  #pragma unroll
  for (int n_3 = 0; n_3 < 4; ++n_3) {
    softmax_max_negated[n_3] = tf_inf_f32();
  }
  alignas(16) float softmax_max_used[4];
  // %k: tile of 64 x 64 -> shared memory
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int item = 128 * step + thread;
    const int r = (item >> 3);
    const int x = (item & 7);
    tf_async_copy<16>(k_tile + 72 * r + 8 * x, k + 262144 * lead + 64 * r + 8 * x);
  }
  // %v: tile of 64 x 64 -> shared memory
  #pragma unroll
  for (int step_1 = 0; step_1 < 4; ++step_1) {
    const int item_1 = 128 * step_1 + thread;
    const int r_1 = (item_1 >> 3);
    const int x_1 = (item_1 & 7);
    tf_async_copy<16>(v_tile + 72 * r_1 + 8 * x_1, v + 262144 * lead + 64 * r_1 + 8 * x_1);
  }
  tf_async_group();
  for (int turn = 0; turn < 64; ++turn) {
    tf_async_wait<0>();
    __syncthreads();
    if (turn + 1 < 64) {
      const int following = turn + 1;
      // %k: tile of 64 x 64 -> shared memory
      #pragma unroll
      for (int step_2 = 0; step_2 < 4; ++step_2) {
        const int item_2 = 128 * step_2 + thread;
        const int r_2 = (item_2 >> 3);
        const int x_2 = (item_2 & 7);
        tf_async_copy<16>(k_tile + 72 * r_2 + 8 * x_2 + 4608 * (following & 1), k + 4096 * following + 262144 * lead + 64 * r_2 + 8 * x_2);
      }
      // %v: tile of 64 x 64 -> shared memory
      #pragma unroll
      for (int step_3 = 0; step_3 < 4; ++step_3) {
        const int item_3 = 128 * step_3 + thread;
        const int r_3 = (item_3 >> 3);
        const int x_3 = (item_3 & 7);
        tf_async_copy<16>(v_tile + 72 * r_3 + 8 * x_3 + 4608 * (following & 1), v + 4096 * following + 262144 * lead + 64 * r_3 + 8 * x_3);
      }
      tf_async_group();
    }
    const int stage = (turn & 1);
    // %matmul: the tile of this turn
    alignas(16) float matmul_sum[64];
    #pragma unroll
    for (int n_4 = 0; n_4 < 64; ++n_4) {
      matmul_sum[n_4] = 0.0f;
    }
    tf_held_product<2, 8, true, 64>(matmul_sum, q_held, k_tile + 4608 * stage, 72);
    // %softmax_max: with the elements of this turn
    alignas(16) float softmax_max_new[4];
    #pragma unroll
    for (int i_1 = 0; i_1 < 4; ++i_1) {
      softmax_max_new[i_1] = softmax_max_so_far[i_1];
    }
    #pragma unroll
    for (int j = 0; j < 16; ++j) {
      #pragma unroll
      for (int i_2 = 0; i_2 < 4; ++i_2) {
        matmul_sum[2 * (i_2 & 1) + 32 * (i_2 >> 1) + (j & 1) + 4 * (j >> 1)] = (((long long)(j + 64 * turn + 6 * (j >> 1) + 2 * (lane_of_warp & 3)) > (long long)(8 * i_2 + 128 * row_tile + 32 * warp_1 + (lane_of_warp >> 2))) ? (-tf_inf_f32()) : matmul_sum[2 * (i_2 & 1) + 32 * (i_2 >> 1) + (j & 1) + 4 * (j >> 1)]);
      }
      #pragma unroll
      for (int i_4 = 0; i_4 < 4; ++i_4) {
        softmax_max_new[i_4] = tf_maximum(softmax_max_new[i_4], matmul_sum[2 * (i_4 & 1) + 32 * (i_4 >> 1) + (j & 1) + 4 * (j >> 1)]);
      }
    }
    float softmax_max_new_other;
    #pragma unroll
    for (int i_5 = 0; i_5 < 4; ++i_5) {
      softmax_max_new_other = tf_shuffle_xor<0xffffffffu>(softmax_max_new[i_5], 2, 32);
      softmax_max_new[i_5] = tf_maximum(softmax_max_new[i_5], softmax_max_new_other);
      softmax_max_new_other = tf_shuffle_xor<0xffffffffu>(softmax_max_new[i_5], 1, 32);
      softmax_max_new[i_5] = tf_maximum(softmax_max_new[i_5], softmax_max_new_other);
    }
    alignas(16) float above[4];
    bool any_above = false;
    #pragma unroll
    for (int i_6 = 0; i_6 < 4; ++i_6) {
      above[i_6] = fmaf(softmax_max_new[i_6], 0.36067376f, softmax_max_negated[i_6]);
      any_above = bool(any_above | (above[i_6] > 8.0f));
    }
    if (any_above) {
      #pragma unroll
      for (int i_7 = 0; i_7 < 4; ++i_7) {
        float negated = (-(softmax_max_new[i_7] * 0.36067376f));
        float factor = ((above[i_7] > 8.0f) ? tf_narrow_exp2((negated - softmax_max_negated[i_7])) : 1.0f);
        softmax_max_negated[i_7] = ((above[i_7] > 8.0f) ? negated : softmax_max_negated[i_7]);
        softmax_sum_so_far[i_7] = (softmax_sum_so_far[i_7] * factor);
        #pragma unroll
        for (int g_1 = 0; g_1 < 8; ++g_1) {
          #pragma unroll
          for (int v_6 = 0; v_6 < 2; ++v_6) {
            matmul_1_so_far[4 * g_1 + v_6 + 2 * (i_7 & 1) + 32 * (i_7 >> 1)] = (matmul_1_so_far[4 * g_1 + v_6 + 2 * (i_7 & 1) + 32 * (i_7 >> 1)] * factor);
          }
        }
      }
    }
    #pragma unroll
    for (int i_8 = 0; i_8 < 4; ++i_8) {
      softmax_max_used[i_8] = ((softmax_max_negated[i_8] == tf_inf_f32()) ? 0.0f : softmax_max_negated[i_8]);
    }
    #pragma unroll
    for (int i_9 = 0; i_9 < 4; ++i_9) {
      softmax_max_so_far[i_9] = softmax_max_new[i_9];
    }
    alignas(16) tf_f16 softmax_held[64];
    // %softmax_sum, %softmax: of this turn
    #pragma unroll
    for (int i_10 = 0; i_10 < 4; ++i_10) {
      #pragma unroll
      for (int j_1 = 0; j_1 < 16; ++j_1) {
        float power = tf_narrow_exp2(fmaf(matmul_sum[2 * (i_10 & 1) + 32 * (i_10 >> 1) + (j_1 & 1) + 4 * (j_1 >> 1)], 0.36067376f, softmax_max_used[i_10]));
        softmax_sum_so_far[i_10] = (softmax_sum_so_far[i_10] + power);
        softmax_held[2 * (i_10 & 1) + 32 * (i_10 >> 1) + (j_1 & 1) + 4 * (j_1 >> 1)] = tf_f16(power);
      }
    }
    // %matmul_1: the powers of this turn times %v
    tf_held_product<2, 8, false, 64>(matmul_1_so_far, softmax_held, v_tile + 4608 * stage, 72);
  }
  // the rows' sums over their lanes, and what is known only now
  float softmax_sum_so_far_other;
  #pragma unroll
  for (int i_11 = 0; i_11 < 4; ++i_11) {
    softmax_sum_so_far_other = tf_shuffle_xor<0xffffffffu>(softmax_sum_so_far[i_11], 2, 32);
    softmax_sum_so_far[i_11] = (softmax_sum_so_far[i_11] + softmax_sum_so_far_other);
    softmax_sum_so_far_other = tf_shuffle_xor<0xffffffffu>(softmax_sum_so_far[i_11], 1, 32);
    softmax_sum_so_far[i_11] = (softmax_sum_so_far[i_11] + softmax_sum_so_far_other);
  }
  #pragma unroll
  for (int i_12 = 0; i_12 < 4; ++i_12) {
    float softmax_sum = (softmax_sum_so_far[i_12] * tf_narrow_exp2((-fmaf(softmax_max_so_far[i_12], 0.36067376f, softmax_max_negated[i_12]))));
    float reciprocal = tf_narrow_reciprocal(softmax_sum);
    float whole = tf_narrow_exp2((-fmaf(softmax_max_so_far[i_12], 0.36067376f, softmax_max_negated[i_12])));
    #pragma unroll
    for (int g_2 = 0; g_2 < 8; ++g_2) {
      #pragma unroll
      for (int v_7 = 0; v_7 < 2; ++v_7) {
        matmul_1_so_far[4 * g_2 + v_7 + 2 * (i_12 & 1) + 32 * (i_12 >> 1)] = ((matmul_1_so_far[4 * g_2 + v_7 + 2 * (i_12 & 1) + 32 * (i_12 >> 1)] * reciprocal) * whole);
      }
    }
    #pragma unroll
    for (int g_3 = 0; g_3 < 8; ++g_3) {
      alignas(16) tf_f16 matmul_1_out[2];
      tf_round_pair(matmul_1_out + 0, matmul_1_so_far[4 * g_3 + 2 * (i_12 & 1) + 32 * (i_12 >> 1)], matmul_1_so_far[4 * g_3 + 2 * (i_12 & 1) + 32 * (i_12 >> 1) + 1]);
      tf_vector_store<2>(matmul_1 + 8 * g_3 + 512 * i_12 + 2 * lane_of_warp + 262144 * lead + 8192 * row_tile + 2048 * warp_1 + 56 * (lane_of_warp >> 2), matmul_1_out);
    }
  }
}
