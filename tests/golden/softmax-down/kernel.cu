// k_y: 128 blocks of 512 threads, 16384 bytes of shared memory, for sm_90a
// nodes: %m, %e, %s, %y
// schedule: m [GRID-CTA_8,CTA_64]S; s [GRID-CTA_8,CTA_64]S; y [GRID-CTA_8,CTA_64]; vector=4; chunks=16; on_chip=false; batch=4; cta_num=128; cta_size=512;
// reads 16777216 bytes, writes 16777216 bytes
extern "C" __global__ void __launch_bounds__(512)
k_y(
    const float* __restrict__ x,
    float* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const m_part_shared = reinterpret_cast<float*>(tf_shared);
  float* const s_sum_shared = reinterpret_cast<float*>(tf_shared + 8192);
  tf_wait_for_earlier_kernel();
  const int x_1 = (thread & 7);
  const int y_1 = (thread >> 3);
  const int column = 8 * block + x_1;
  // %m (reduce.max): down the columns
  alignas(16) float m_part[4];
  #pragma unroll
  for (int v = 0; v < 4; ++v) {
    m_part[v] = (-tf_inf_f32());
  }
  for (int step = 0; step < 4; ++step) {
    alignas(16) float x_v[16];
    #pragma unroll
    for (int inner = 0; inner < 4; ++inner) {
      const int row = 64 * inner + 256 * step + y_1;
      if (row < 1024) {
        tf_vector_load_stream<4>(x_v + 4 * inner, x + 4 * column + 4096 * row);
      }
    }
    #pragma unroll
    for (int inner_1 = 0; inner_1 < 4; ++inner_1) {
      const int row_1 = 64 * inner_1 + 256 * step + y_1;
      if (row_1 < 1024) {
        #pragma unroll
        for (int v_1 = 0; v_1 < 4; ++v_1) {
          m_part[v_1] = tf_maximum(m_part[v_1], x_v[4 * inner_1 + v_1]);
        }
      }
    }
  }
  #pragma unroll
  for (int v_2 = 0; v_2 < 4; ++v_2) {
    m_part_shared[8 * v_2 + x_1 + 32 * y_1] = m_part[v_2];
  }
  __syncthreads();
  if (y_1 < 32) {
    #pragma unroll
    for (int v_3 = 0; v_3 < 4; ++v_3) {
      float m_part_o = m_part_shared[8 * v_3 + x_1 + 32 * y_1 + 1024];
      m_part[v_3] = tf_maximum(m_part[v_3], m_part_o);
      m_part_shared[8 * v_3 + x_1 + 32 * y_1] = m_part[v_3];
    }
  }
  __syncthreads();
  if (y_1 < 16) {
    #pragma unroll
    for (int v_4 = 0; v_4 < 4; ++v_4) {
      float m_part_o_1 = m_part_shared[8 * v_4 + x_1 + 32 * y_1 + 512];
      m_part[v_4] = tf_maximum(m_part[v_4], m_part_o_1);
      m_part_shared[8 * v_4 + x_1 + 32 * y_1] = m_part[v_4];
    }
  }
  __syncthreads();
  if (y_1 < 8) {
    #pragma unroll
    for (int v_5 = 0; v_5 < 4; ++v_5) {
      float m_part_o_2 = m_part_shared[8 * v_5 + x_1 + 32 * y_1 + 256];
      m_part[v_5] = tf_maximum(m_part[v_5], m_part_o_2);
      m_part_shared[8 * v_5 + x_1 + 32 * y_1] = m_part[v_5];
    }
  }
  __syncthreads();
  if (y_1 < 4) {
    #pragma unroll
    for (int v_6 = 0; v_6 < 4; ++v_6) {
      float m_part_o_3 = m_part_shared[8 * v_6 + x_1 + 32 * y_1 + 128];
      m_part[v_6] = tf_maximum(m_part[v_6], m_part_o_3);
      m_part_shared[8 * v_6 + x_1 + 32 * y_1] = m_part[v_6];
    }
  }
  __syncthreads();
  if (y_1 < 2) {
    #pragma unroll
    for (int v_7 = 0; v_7 < 4; ++v_7) {
      float m_part_o_4 = m_part_shared[8 * v_7 + x_1 + 32 * y_1 + 64];
      m_part[v_7] = tf_maximum(m_part[v_7], m_part_o_4);
      m_part_shared[8 * v_7 + x_1 + 32 * y_1] = m_part[v_7];
    }
  }
  __syncthreads();
  if (y_1 < 1) {
    #pragma unroll
    for (int v_8 = 0; v_8 < 4; ++v_8) {
      float m_part_o_5 = m_part_shared[8 * v_8 + x_1 + 32 * y_1 + 32];
      m_part[v_8] = tf_maximum(m_part[v_8], m_part_o_5);
      m_part_shared[8 * v_8 + x_1 + 32 * y_1] = m_part[v_8];
    }
  }
  __syncthreads();
  #pragma unroll
  for (int v_9 = 0; v_9 < 4; ++v_9) {
    m_part[v_9] = m_part_shared[8 * v_9 + x_1];
  }
  alignas(16) float m[4];
  #pragma unroll
  for (int v_10 = 0; v_10 < 4; ++v_10) {
    m[v_10] = m_part[v_10];
  }
  // %s (reduce.sum): down the columns
  alignas(16) float s_sum[4];
  #pragma unroll
  for (int v_11 = 0; v_11 < 4; ++v_11) {
    s_sum[v_11] = 0.0f;
  }
  for (int step_1 = 0; step_1 < 4; ++step_1) {
    alignas(16) float x_v_1[16];
    #pragma unroll
    for (int inner_2 = 0; inner_2 < 4; ++inner_2) {
      const int row_2 = 64 * inner_2 + 256 * step_1 + y_1;
      if (row_2 < 1024) {
        tf_vector_load_stream<4>(x_v_1 + 4 * inner_2, x + 4 * column + 4096 * row_2);
      }
    }
    #pragma unroll
    for (int inner_3 = 0; inner_3 < 4; ++inner_3) {
      const int row_3 = 64 * inner_3 + 256 * step_1 + y_1;
      if (row_3 < 1024) {
        #pragma unroll
        for (int v_12 = 0; v_12 < 4; ++v_12) {
          float e = expf((x_v_1[4 * inner_3 + v_12] - m[v_12]));
          s_sum[v_12] = (s_sum[v_12] + e);
        }
      }
    }
  }
  #pragma unroll
  for (int v_13 = 0; v_13 < 4; ++v_13) {
    s_sum_shared[8 * v_13 + x_1 + 32 * y_1] = s_sum[v_13];
  }
  __syncthreads();
  if (y_1 < 32) {
    #pragma unroll
    for (int v_14 = 0; v_14 < 4; ++v_14) {
      float s_sum_o = s_sum_shared[8 * v_14 + x_1 + 32 * y_1 + 1024];
      s_sum[v_14] = (s_sum[v_14] + s_sum_o);
      s_sum_shared[8 * v_14 + x_1 + 32 * y_1] = s_sum[v_14];
    }
  }
  __syncthreads();
  if (y_1 < 16) {
    #pragma unroll
    for (int v_15 = 0; v_15 < 4; ++v_15) {
      float s_sum_o_1 = s_sum_shared[8 * v_15 + x_1 + 32 * y_1 + 512];
      s_sum[v_15] = (s_sum[v_15] + s_sum_o_1);
      s_sum_shared[8 * v_15 + x_1 + 32 * y_1] = s_sum[v_15];
    }
  }
  __syncthreads();
  if (y_1 < 8) {
    #pragma unroll
    for (int v_16 = 0; v_16 < 4; ++v_16) {
      float s_sum_o_2 = s_sum_shared[8 * v_16 + x_1 + 32 * y_1 + 256];
      s_sum[v_16] = (s_sum[v_16] + s_sum_o_2);
      s_sum_shared[8 * v_16 + x_1 + 32 * y_1] = s_sum[v_16];
    }
  }
  __syncthreads();
  if (y_1 < 4) {
    #pragma unroll
    for (int v_17 = 0; v_17 < 4; ++v_17) {
      float s_sum_o_3 = s_sum_shared[8 * v_17 + x_1 + 32 * y_1 + 128];
      s_sum[v_17] = (s_sum[v_17] + s_sum_o_3);
      s_sum_shared[8 * v_17 + x_1 + 32 * y_1] = s_sum[v_17];
    }
  }
  __syncthreads();
  if (y_1 < 2) {
    #pragma unroll
    for (int v_18 = 0; v_18 < 4; ++v_18) {
      float s_sum_o_4 = s_sum_shared[8 * v_18 + x_1 + 32 * y_1 + 64];
      s_sum[v_18] = (s_sum[v_18] + s_sum_o_4);
      s_sum_shared[8 * v_18 + x_1 + 32 * y_1] = s_sum[v_18];
    }
  }
  __syncthreads();
  if (y_1 < 1) {
    #pragma unroll
    for (int v_19 = 0; v_19 < 4; ++v_19) {
      float s_sum_o_5 = s_sum_shared[8 * v_19 + x_1 + 32 * y_1 + 32];
      s_sum[v_19] = (s_sum[v_19] + s_sum_o_5);
      s_sum_shared[8 * v_19 + x_1 + 32 * y_1] = s_sum[v_19];
    }
  }
  __syncthreads();
  #pragma unroll
  for (int v_20 = 0; v_20 < 4; ++v_20) {
    s_sum[v_20] = s_sum_shared[8 * v_20 + x_1];
  }
  alignas(16) float s[4];
  #pragma unroll
  for (int v_21 = 0; v_21 < 4; ++v_21) {
    s[v_21] = s_sum[v_21];
  }
  // %y: registers -> global memory
  for (int step_2 = 0; step_2 < 4; ++step_2) {
    alignas(16) float x_v_2[16];
    #pragma unroll
    for (int inner_4 = 0; inner_4 < 4; ++inner_4) {
      const int row_4 = 64 * inner_4 + 256 * step_2 + y_1;
      if (row_4 < 1024) {
        tf_vector_load_stream<4>(x_v_2 + 4 * inner_4, x + 4 * column + 4096 * row_4);
      }
    }
    #pragma unroll
    for (int inner_5 = 0; inner_5 < 4; ++inner_5) {
      const int row_5 = 64 * inner_5 + 256 * step_2 + y_1;
      if (row_5 < 1024) {
        alignas(16) float y_out[4];
        #pragma unroll
        for (int v_22 = 0; v_22 < 4; ++v_22) {
          float e_1 = expf((x_v_2[4 * inner_5 + v_22] - m[v_22]));
          float y_2 = (e_1 / s[v_22]);
          y_out[v_22] = y_2;
        }
        tf_vector_store<4>(y + 4 * column + 4096 * row_5, y_out);
      }
    }
  }
}
