// packed_k_s_2: 133 blocks of 256 threads, 4096 bytes of shared memory, for sm_90a
// pack { 1 x { s_2 [GRID-CTA_16,GRID_8-CTA_16]; vector=4; chunks=4; on_chip=false; batch=4; resident=4; cta_num=32; cta_size=256; } 1 x { s_0 [GRID-CTA_2,CTA_128]; vector=4; chunks=4; on_chip=false; lanes=4; batch=4; cta_num=32; cta_size=256; } 1 x { y_3 [GRID,GRID-CTA_256]; vector=4; steps=1; unrolled=true; side=16; cta_num=64; cta_size=256; } 2 x { n_1 [GRID-CTA_256]; q_1 [GRID-CTA_256]; vector=4; steps=1; unrolled=true; cta_num=3; cta_size=256; } 1 x { s_4 [CTA_256]; vector=4; chunks=5; on_chip=false; lanes=4; cta_num=1; cta_size=256; } };
// reads 1372872 bytes, writes 291524 bytes
// group 0, 1 members: nodes: %s_2
// group 1, 1 members: nodes: %s_0
// group 2, 1 members: nodes: %y_3
// group 3, 2 members: nodes: %n_1, %q_1
// group 4, 1 members: nodes: %s_4
extern "C" __global__ void __launch_bounds__(256)
packed_k_s_2(
    const __grid_constant__ packed_k_s_2_operands tf_operands) {
  const int thread = threadIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const s_2_sum_shared = reinterpret_cast<float*>(tf_shared);
  float* const s_0_1_shared = reinterpret_cast<float*>(tf_shared);
  float* const s_4_1_shared = reinterpret_cast<float*>(tf_shared);
  tf_wait_for_earlier_kernel();
  if (blockIdx.x < 32) {
    const int block = (int)blockIdx.x;
    const float* __restrict__ const x_2 = static_cast<const float*>(tf_operands.at[0]);
    float* __restrict__ const s_2 = static_cast<float*>(tf_operands.at[1]);
    float* const s_2_sum_partial = static_cast<float*>(tf_operands.at[2]);
    int* const arrived = static_cast<int*>(tf_operands.at[3]);
    const int x = (thread & 15);
    const int y = (thread >> 4);
    const int part = (block & 7);
    const int tile = (block >> 3);
    const int column = 16 * tile + x;
    // %s_2 (reduce.sum): down the columns
    alignas(16) float s_2_sum[4];
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      s_2_sum[v] = 0.0f;
    }
    alignas(16) float x_2_v[16];
    #pragma unroll
    for (int inner = 0; inner < 4; ++inner) {
      const int row = 16 * inner + 64 * part + y;
      if (row < 512) {
        tf_vector_load_stream<4>(x_2_v + 4 * inner, x_2 + 4 * column + 256 * row);
      }
    }
    #pragma unroll
    for (int inner_1 = 0; inner_1 < 4; ++inner_1) {
      const int row_1 = 16 * inner_1 + 64 * part + y;
      if (row_1 < 512) {
        #pragma unroll
        for (int v_1 = 0; v_1 < 4; ++v_1) {
          s_2_sum[v_1] = (s_2_sum[v_1] + x_2_v[4 * inner_1 + v_1]);
        }
      }
    }
    #pragma unroll
    for (int v_2 = 0; v_2 < 4; ++v_2) {
      s_2_sum_shared[16 * v_2 + x + 64 * y] = s_2_sum[v_2];
    }
    __syncthreads();
    if (y < 8) {
      #pragma unroll
      for (int v_3 = 0; v_3 < 4; ++v_3) {
        float s_2_sum_o = s_2_sum_shared[16 * v_3 + x + 64 * y + 512];
        s_2_sum[v_3] = (s_2_sum[v_3] + s_2_sum_o);
        s_2_sum_shared[16 * v_3 + x + 64 * y] = s_2_sum[v_3];
      }
    }
    __syncthreads();
    if (y < 4) {
      #pragma unroll
      for (int v_4 = 0; v_4 < 4; ++v_4) {
        float s_2_sum_o_1 = s_2_sum_shared[16 * v_4 + x + 64 * y + 256];
        s_2_sum[v_4] = (s_2_sum[v_4] + s_2_sum_o_1);
        s_2_sum_shared[16 * v_4 + x + 64 * y] = s_2_sum[v_4];
      }
    }
    __syncthreads();
    if (y < 2) {
      #pragma unroll
      for (int v_5 = 0; v_5 < 4; ++v_5) {
        float s_2_sum_o_2 = s_2_sum_shared[16 * v_5 + x + 64 * y + 128];
        s_2_sum[v_5] = (s_2_sum[v_5] + s_2_sum_o_2);
        s_2_sum_shared[16 * v_5 + x + 64 * y] = s_2_sum[v_5];
      }
    }
    __syncthreads();
    if (y < 1) {
      #pragma unroll
      for (int v_6 = 0; v_6 < 4; ++v_6) {
        float s_2_sum_o_3 = s_2_sum_shared[16 * v_6 + x + 64 * y + 64];
        s_2_sum[v_6] = (s_2_sum[v_6] + s_2_sum_o_3);
      }
    }
    if (y < 1) {
      tf_vector_store<4>(s_2_sum_partial + 4 * column + 256 * part, s_2_sum);
    }
    bool is_last;
    is_last = tf_last_block(arrived + tile, 8);
    if (is_last) {
      #pragma unroll
      for (int v_7 = 0; v_7 < 4; ++v_7) {
        s_2_sum[v_7] = 0.0f;
      }
      if (y < 8) {
        alignas(16) float s_2_sum_o_4[4];
        tf_vector_load<4>(s_2_sum_o_4, s_2_sum_partial + 4 * column + 256 * y);
        #pragma unroll
        for (int v_8 = 0; v_8 < 4; ++v_8) {
          s_2_sum[v_8] = (s_2_sum[v_8] + s_2_sum_o_4[v_8]);
        }
      }
      #pragma unroll
      for (int v_9 = 0; v_9 < 4; ++v_9) {
        s_2_sum_shared[16 * v_9 + x + 64 * y] = s_2_sum[v_9];
      }
      __syncthreads();
      if (y < 8) {
        #pragma unroll
        for (int v_10 = 0; v_10 < 4; ++v_10) {
          float s_2_sum_o_5 = s_2_sum_shared[16 * v_10 + x + 64 * y + 512];
          s_2_sum[v_10] = (s_2_sum[v_10] + s_2_sum_o_5);
          s_2_sum_shared[16 * v_10 + x + 64 * y] = s_2_sum[v_10];
        }
      }
      __syncthreads();
      if (y < 4) {
        #pragma unroll
        for (int v_11 = 0; v_11 < 4; ++v_11) {
          float s_2_sum_o_6 = s_2_sum_shared[16 * v_11 + x + 64 * y + 256];
          s_2_sum[v_11] = (s_2_sum[v_11] + s_2_sum_o_6);
          s_2_sum_shared[16 * v_11 + x + 64 * y] = s_2_sum[v_11];
        }
      }
      __syncthreads();
      if (y < 2) {
        #pragma unroll
        for (int v_12 = 0; v_12 < 4; ++v_12) {
          float s_2_sum_o_7 = s_2_sum_shared[16 * v_12 + x + 64 * y + 128];
          s_2_sum[v_12] = (s_2_sum[v_12] + s_2_sum_o_7);
          s_2_sum_shared[16 * v_12 + x + 64 * y] = s_2_sum[v_12];
        }
      }
      __syncthreads();
      if (y < 1) {
        #pragma unroll
        for (int v_13 = 0; v_13 < 4; ++v_13) {
          float s_2_sum_o_8 = s_2_sum_shared[16 * v_13 + x + 64 * y + 64];
          s_2_sum[v_13] = (s_2_sum[v_13] + s_2_sum_o_8);
        }
      }
      alignas(16) float s_2_1[4];
      #pragma unroll
      for (int v_14 = 0; v_14 < 4; ++v_14) {
        s_2_1[v_14] = s_2_sum[v_14];
      }
      // %s_2: one value a column
      if (y < 1) {
        #pragma unroll
        for (int v_15 = 0; v_15 < 4; ++v_15) {
          s_2[4 * column + v_15] = s_2_1[v_15];
        }
      }
    }
  }
  else if (blockIdx.x < 64) {
    const int block = (int)blockIdx.x - 32;
    const float* __restrict__ const x_0 = static_cast<const float*>(tf_operands.at[4]);
    float* __restrict__ const s_0 = static_cast<float*>(tf_operands.at[5]);
    const int place = (thread & 127);
    const int row_of_block = (thread >> 7);
    const int row = 2 * block + row_of_block;
    // %s_0 (reduce.sum): threads -> warp -> block
    alignas(16) float s_0_1[4];
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      s_0_1[v] = 0.0f;
    }
    alignas(16) float x_0_v[16];
    #pragma unroll
    for (int inner = 0; inner < 4; ++inner) {
      const int vector = 128 * inner + place;
      if (vector < 512) {
        tf_vector_load_stream<4>(x_0_v + 4 * inner, x_0 + 2048 * row + 4 * vector);
      }
    }
    #pragma unroll
    for (int inner_1 = 0; inner_1 < 4; ++inner_1) {
      const int vector_1 = 128 * inner_1 + place;
      if (vector_1 < 512) {
        #pragma unroll
        for (int v_1 = 0; v_1 < 4; ++v_1) {
          s_0_1[v_1] = (s_0_1[v_1] + x_0_v[4 * inner_1 + v_1]);
        }
      }
    }
    s_0_1[0] = (s_0_1[0] + s_0_1[1]);
    s_0_1[2] = (s_0_1[2] + s_0_1[3]);
    s_0_1[0] = (s_0_1[0] + s_0_1[2]);
    float s_0_1_other;
    s_0_1_other = tf_shuffle_xor<0xffffffffu>(s_0_1[0], 16, 32);
    s_0_1[0] = (s_0_1[0] + s_0_1_other);
    float s_0_1_other_1;
    s_0_1_other_1 = tf_shuffle_xor<0xffffffffu>(s_0_1[0], 8, 32);
    s_0_1[0] = (s_0_1[0] + s_0_1_other_1);
    float s_0_1_other_2;
    s_0_1_other_2 = tf_shuffle_xor<0xffffffffu>(s_0_1[0], 4, 32);
    s_0_1[0] = (s_0_1[0] + s_0_1_other_2);
    float s_0_1_other_3;
    s_0_1_other_3 = tf_shuffle_xor<0xffffffffu>(s_0_1[0], 2, 32);
    s_0_1[0] = (s_0_1[0] + s_0_1_other_3);
    float s_0_1_other_4;
    s_0_1_other_4 = tf_shuffle_xor<0xffffffffu>(s_0_1[0], 1, 32);
    s_0_1[0] = (s_0_1[0] + s_0_1_other_4);
    const int warp_1 = (place >> 5);
    const int lane_of_warp = (place & 31);
    if (lane_of_warp < 1) {
      s_0_1_shared[4 * row_of_block + warp_1] = s_0_1[0];
    }
    __syncthreads();
    s_0_1[0] = s_0_1_shared[4 * row_of_block];
    #pragma unroll
    for (int slot = 1; slot < 4; ++slot) {
      float s_0_1_other_5 = s_0_1_shared[4 * row_of_block + slot];
      s_0_1[0] = (s_0_1[0] + s_0_1_other_5);
    }
    // %s_0: one value a row
    if (place < 1) {
      s_0[row] = s_0_1[0];
    }
  }
  else if (blockIdx.x < 128) {
    const int block = (int)blockIdx.x - 64;
    const float* __restrict__ const x_3 = static_cast<const float*>(tf_operands.at[6]);
    float* __restrict__ const y_3 = static_cast<float*>(tf_operands.at[7]);
    const int vector = 256 * block + thread;
    const int vector_1 = 256 * block + thread;
    alignas(16) float y_3_out[4];
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      float x_3_at = x_3[256 * v + ((vector_1 >> 1) & 15) + 2048 * ((vector_1 >> 5) & 31) + 1024 * (vector_1 & 1) + 16 * (vector_1 >> 10)];
      float y_3_1 = x_3_at;
      y_3_out[v] = y_3_1;
    }
    tf_vector_store<4>(y_3 + 256 * ((vector_1 >> 1) & 15) + 8 * ((vector_1 >> 5) & 31) + 4 * (vector_1 & 1) + 4096 * (vector_1 >> 10), y_3_out);
  }
  else if (blockIdx.x < 132) {
    const int tf_place = (int)blockIdx.x - 128;
    const int tf_member = tf_member_of<2>(tf_first_3, tf_place);
    const int block = tf_place - tf_first_3[tf_member];
    const int num_vectors = tf_num_vectors_3[tf_member];
    const float* __restrict__ const m_1 = static_cast<const float*>(tf_operands.at[8 + tf_member * 6]);
    const float* __restrict__ const g_1 = static_cast<const float*>(tf_operands.at[9 + tf_member * 6]);
    const float* __restrict__ const p_1 = static_cast<const float*>(tf_operands.at[10 + tf_member * 6]);
    const float* __restrict__ const rate_1 = static_cast<const float*>(tf_operands.at[11 + tf_member * 6]);
    float* __restrict__ const n_1 = static_cast<float*>(tf_operands.at[12 + tf_member * 6]);
    float* __restrict__ const q_1 = static_cast<float*>(tf_operands.at[13 + tf_member * 6]);
    float rate_1_at = rate_1[0];
    alignas(16) float m_1_v[4];
    alignas(16) float g_1_v[4];
    alignas(16) float p_1_v[4];
    const int item = 256 * block + thread;
    if (item < num_vectors) {
      tf_vector_load<4>(m_1_v, m_1 + 4 * item);
      tf_vector_load<4>(g_1_v, g_1 + 4 * item);
      tf_vector_load<4>(p_1_v, p_1 + 4 * item);
    }
    const int item_1 = 256 * block + thread;
    if (item_1 < num_vectors) {
      alignas(16) float n_1_out[4];
      alignas(16) float q_1_out[4];
      #pragma unroll
      for (int v = 0; v < 4; ++v) {
        float n_1_1 = ((m_1_v[v] * 0.5f) + g_1_v[v]);
        float q_1_1 = (p_1_v[v] - (n_1_1 * rate_1_at));
        n_1_out[v] = n_1_1;
        q_1_out[v] = q_1_1;
      }
      tf_vector_store<4>(n_1 + 4 * item_1, n_1_out);
      tf_vector_store<4>(q_1 + 4 * item_1, q_1_out);
    }
  }
  else {
    const int block = (int)blockIdx.x - 132;
    const float* __restrict__ const x_4 = static_cast<const float*>(tf_operands.at[20]);
    float* __restrict__ const s_4 = static_cast<float*>(tf_operands.at[21]);
    // %s_4 (reduce.sum): threads -> warp -> block
    alignas(16) float s_4_1[4];
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      s_4_1[v] = 0.0f;
    }
    for (int chunk = 0; chunk < 5; ++chunk) {
      const int vector = 256 * chunk + thread;
      if (vector < 1250) {
        alignas(16) float x_4_v[4];
        tf_vector_load_stream<4>(x_4_v, x_4 + 4 * vector);
        #pragma unroll
        for (int v_1 = 0; v_1 < 4; ++v_1) {
          s_4_1[v_1] = (s_4_1[v_1] + x_4_v[v_1]);
        }
      }
    }
    s_4_1[0] = (s_4_1[0] + s_4_1[1]);
    s_4_1[2] = (s_4_1[2] + s_4_1[3]);
    s_4_1[0] = (s_4_1[0] + s_4_1[2]);
    float s_4_1_other;
    s_4_1_other = tf_shuffle_xor<0xffffffffu>(s_4_1[0], 16, 32);
    s_4_1[0] = (s_4_1[0] + s_4_1_other);
    float s_4_1_other_1;
    s_4_1_other_1 = tf_shuffle_xor<0xffffffffu>(s_4_1[0], 8, 32);
    s_4_1[0] = (s_4_1[0] + s_4_1_other_1);
    float s_4_1_other_2;
    s_4_1_other_2 = tf_shuffle_xor<0xffffffffu>(s_4_1[0], 4, 32);
    s_4_1[0] = (s_4_1[0] + s_4_1_other_2);
    float s_4_1_other_3;
    s_4_1_other_3 = tf_shuffle_xor<0xffffffffu>(s_4_1[0], 2, 32);
    s_4_1[0] = (s_4_1[0] + s_4_1_other_3);
    float s_4_1_other_4;
    s_4_1_other_4 = tf_shuffle_xor<0xffffffffu>(s_4_1[0], 1, 32);
    s_4_1[0] = (s_4_1[0] + s_4_1_other_4);
    const int warp_1 = (thread >> 5);
    const int lane_of_warp = (thread & 31);
    if (lane_of_warp < 1) {
      s_4_1_shared[warp_1] = s_4_1[0];
    }
    __syncthreads();
    s_4_1[0] = s_4_1_shared[0];
    #pragma unroll
    for (int slot = 1; slot < 8; ++slot) {
      float s_4_1_other_5 = s_4_1_shared[slot];
      s_4_1[0] = (s_4_1[0] + s_4_1_other_5);
    }
    // %s_4: one value a row
    if (thread < 1) {
      s_4[0] = s_4_1[0];
    }
  }
}
