// k_s: 512 blocks of 256 threads, 4096 bytes of shared memory, for sm_90a
// nodes: %s
// schedule: s [GRID-CTA_16,GRID_8-CTA_16]; vector=4; chunks=64; on_chip=false; batch=4; resident=4; cta_num=512; cta_size=256;
// reads 134217728 bytes, writes 16384 bytes
extern "C" __global__ void __launch_bounds__(256, 4)
k_s(
    const float* __restrict__ x,
    float* __restrict__ s,
    float* s_sum_partial,
    int* arrived) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const s_sum_shared = reinterpret_cast<float*>(tf_shared);
  tf_wait_for_earlier_kernel();
  const int x_1 = (thread & 15);
  const int y = (thread >> 4);
  const int part = (block & 7);
  const int tile = (block >> 3);
  const int column = 16 * tile + x_1;
  // %s (reduce.sum): down the columns
  alignas(16) float s_sum[4];
  #pragma unroll
  for (int v = 0; v < 4; ++v) {
    s_sum[v] = 0.0f;
  }
  for (int step = 0; step < 16; ++step) {
    alignas(16) float x_v[16];
    #pragma unroll
    for (int inner = 0; inner < 4; ++inner) {
      const int row = 16 * inner + 1024 * part + 64 * step + y;
      if (row < 8192) {
        tf_vector_load_stream<4>(x_v + 4 * inner, x + 4 * column + 4096 * row);
      }
    }
    #pragma unroll
    for (int inner_1 = 0; inner_1 < 4; ++inner_1) {
      const int row_1 = 16 * inner_1 + 1024 * part + 64 * step + y;
      if (row_1 < 8192) {
        #pragma unroll
        for (int v_1 = 0; v_1 < 4; ++v_1) {
          s_sum[v_1] = (s_sum[v_1] + x_v[4 * inner_1 + v_1]);
        }
      }
    }
  }
  #pragma unroll
  for (int v_2 = 0; v_2 < 4; ++v_2) {
    s_sum_shared[16 * v_2 + x_1 + 64 * y] = s_sum[v_2];
  }
  __syncthreads();
  if (y < 8) {
    #pragma unroll
    for (int v_3 = 0; v_3 < 4; ++v_3) {
      float s_sum_o = s_sum_shared[16 * v_3 + x_1 + 64 * y + 512];
      s_sum[v_3] = (s_sum[v_3] + s_sum_o);
      s_sum_shared[16 * v_3 + x_1 + 64 * y] = s_sum[v_3];
    }
  }
  __syncthreads();
  if (y < 4) {
    #pragma unroll
    for (int v_4 = 0; v_4 < 4; ++v_4) {
      float s_sum_o_1 = s_sum_shared[16 * v_4 + x_1 + 64 * y + 256];
      s_sum[v_4] = (s_sum[v_4] + s_sum_o_1);
      s_sum_shared[16 * v_4 + x_1 + 64 * y] = s_sum[v_4];
    }
  }
  __syncthreads();
  if (y < 2) {
    #pragma unroll
    for (int v_5 = 0; v_5 < 4; ++v_5) {
      float s_sum_o_2 = s_sum_shared[16 * v_5 + x_1 + 64 * y + 128];
      s_sum[v_5] = (s_sum[v_5] + s_sum_o_2);
      s_sum_shared[16 * v_5 + x_1 + 64 * y] = s_sum[v_5];
    }
  }
  __syncthreads();
  if (y < 1) {
    #pragma unroll
    for (int v_6 = 0; v_6 < 4; ++v_6) {
      float s_sum_o_3 = s_sum_shared[16 * v_6 + x_1 + 64 * y + 64];
      s_sum[v_6] = (s_sum[v_6] + s_sum_o_3);
    }
  }
  if (y < 1) {
    tf_vector_store<4>(s_sum_partial + 4 * column + 4096 * part, s_sum);
  }
  bool is_last;
  is_last = tf_last_block(arrived + tile, 8);
  if (is_last) {
    #pragma unroll
    for (int v_7 = 0; v_7 < 4; ++v_7) {
      s_sum[v_7] = 0.0f;
    }
    if (y < 8) {
      alignas(16) float s_sum_o_4[4];
      tf_vector_load<4>(s_sum_o_4, s_sum_partial + 4 * column + 4096 * y);
      #pragma unroll
      for (int v_8 = 0; v_8 < 4; ++v_8) {
        s_sum[v_8] = (s_sum[v_8] + s_sum_o_4[v_8]);
      }
    }
    #pragma unroll
    for (int v_9 = 0; v_9 < 4; ++v_9) {
      s_sum_shared[16 * v_9 + x_1 + 64 * y] = s_sum[v_9];
    }
    __syncthreads();
    if (y < 8) {
      #pragma unroll
      for (int v_10 = 0; v_10 < 4; ++v_10) {
        float s_sum_o_5 = s_sum_shared[16 * v_10 + x_1 + 64 * y + 512];
        s_sum[v_10] = (s_sum[v_10] + s_sum_o_5);
        s_sum_shared[16 * v_10 + x_1 + 64 * y] = s_sum[v_10];
      }
    }
    __syncthreads();
    if (y < 4) {
      #pragma unroll
      for (int v_11 = 0; v_11 < 4; ++v_11) {
        float s_sum_o_6 = s_sum_shared[16 * v_11 + x_1 + 64 * y + 256];
        s_sum[v_11] = (s_sum[v_11] + s_sum_o_6);
        s_sum_shared[16 * v_11 + x_1 + 64 * y] = s_sum[v_11];
      }
    }
    __syncthreads();
    if (y < 2) {
      #pragma unroll
      for (int v_12 = 0; v_12 < 4; ++v_12) {
        float s_sum_o_7 = s_sum_shared[16 * v_12 + x_1 + 64 * y + 128];
        s_sum[v_12] = (s_sum[v_12] + s_sum_o_7);
        s_sum_shared[16 * v_12 + x_1 + 64 * y] = s_sum[v_12];
      }
    }
    __syncthreads();
    if (y < 1) {
      #pragma unroll
      for (int v_13 = 0; v_13 < 4; ++v_13) {
        float s_sum_o_8 = s_sum_shared[16 * v_13 + x_1 + 64 * y + 64];
        s_sum[v_13] = (s_sum[v_13] + s_sum_o_8);
      }
    }
    alignas(16) float s_1[4];
    #pragma unroll
    for (int v_14 = 0; v_14 < 4; ++v_14) {
      s_1[v_14] = s_sum[v_14];
    }
    // %s: one value a column
    if (y < 1) {
      #pragma unroll
      for (int v_15 = 0; v_15 < 4; ++v_15) {
        s[4 * column + v_15] = s_1[v_15];
      }
    }
  }
}
