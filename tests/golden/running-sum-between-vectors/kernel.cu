// k_y: 8192 blocks of 160 threads, 284 bytes of shared memory, for sm_90a
// nodes: %y
// schedule: y [GRID,CTA_160]; vector=4; chunks=7; on_chip=true; lanes=2; cta_num=8192; cta_size=160;
// reads 134217728 bytes, writes 134250496 bytes
extern "C" __global__ void __launch_bounds__(160)
k_y(
    const float* __restrict__ x,
    float* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const y_warps = reinterpret_cast<float*>(tf_shared);
  float* const y_below = reinterpret_cast<float*>(tf_shared + 144);
  tf_wait_for_earlier_kernel();
  // rows begin and end between vectors: the walk follows vectors of memory
  const int first_vector = ((4097 * block) >> 2);
  alignas(16) float x_v[28];
  // %x: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 7; ++chunk) {
    const int vector = 160 * chunk + thread;
    if (vector < 1025) {
      #pragma unroll
      for (int v = 0; v < 4; ++v) {
        if (-4097 * block + 4 * first_vector + v + 4 * vector >= 0 && -4097 * block + 4 * first_vector + v + 4 * vector < 4097) {
          if (-4097 * block + 4 * first_vector + v + 4 * vector < 1) {
          } else {
            tf_vector_load_stream<1>(x_v + 4 * chunk + v, x + -1 * block + 4 * first_vector + v + 4 * vector - 1);
          }
        }
      }
    }
  }
  // %y (scan.sum): lanes -> warp -> block
  alignas(16) float y_total[7];
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 7; ++chunk_1) {
    y_total[chunk_1] = 0.0f;
    const int vector_1 = 160 * chunk_1 + thread;
    if (vector_1 < 1025) {
      #pragma unroll
      for (int v_1 = 0; v_1 < 4; ++v_1) {
        if (-4097 * block + 4 * first_vector + v_1 + 4 * vector_1 >= 0 && -4097 * block + 4 * first_vector + v_1 + 4 * vector_1 < 4097) {
          y_total[chunk_1] = (y_total[chunk_1] + (-4097 * block + 4 * first_vector + v_1 + 4 * vector_1 < 1 ? 0.0f : x_v[4 * chunk_1 + v_1]));
        }
      }
    }
  }
  const int lane_of_warp = (thread & 31);
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 7; ++chunk_2) {
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
  for (int chunk_3 = 0; chunk_3 < 7; ++chunk_3) {
    if (lane_of_warp >= 31) {
      y_warps[5 * chunk_3 + warp_1] = y_total[chunk_3];
    }
  }
  __syncthreads();
  float before = 0.0f;
  alignas(16) float slot_sums[2];
  float block_total = 0.0f;
  float before_slot;
  #pragma unroll
  for (int slot = 0; slot < 2; ++slot) {
    if (2 * lane_of_warp + slot < 35) {
      slot_sums[slot] = y_warps[2 * lane_of_warp + slot];
      block_total = (block_total + slot_sums[slot]);
    }
  }
  float lower_5;
  lower_5 = tf_shuffle_up<0xffffffffu>(block_total, 1, 32);
  if (lane_of_warp >= 1) {
    block_total = (lower_5 + block_total);
  }
  float lower_6;
  lower_6 = tf_shuffle_up<0xffffffffu>(block_total, 2, 32);
  if (lane_of_warp >= 2) {
    block_total = (lower_6 + block_total);
  }
  float lower_7;
  lower_7 = tf_shuffle_up<0xffffffffu>(block_total, 4, 32);
  if (lane_of_warp >= 4) {
    block_total = (lower_7 + block_total);
  }
  float lower_8;
  lower_8 = tf_shuffle_up<0xffffffffu>(block_total, 8, 32);
  if (lane_of_warp >= 8) {
    block_total = (lower_8 + block_total);
  }
  float lower_9;
  lower_9 = tf_shuffle_up<0xffffffffu>(block_total, 16, 32);
  if (lane_of_warp >= 16) {
    block_total = (lower_9 + block_total);
  }
  before_slot = tf_shuffle_up<0xffffffffu>(block_total, 1, 32);
  if (lane_of_warp < 1) {
    before_slot = 0.0f;
  }
  #pragma unroll
  for (int slot_1 = 0; slot_1 < 2; ++slot_1) {
    if (thread < 32 && 2 * lane_of_warp + slot_1 < 35) {
      y_below[2 * lane_of_warp + slot_1] = before_slot;
      before_slot = (before_slot + slot_sums[slot_1]);
    }
  }
  __syncthreads();
  alignas(16) float before_vector[7];
  #pragma unroll
  for (int chunk_4 = 0; chunk_4 < 7; ++chunk_4) {
    before_vector[chunk_4] = (before + y_below[5 * chunk_4 + warp_1]);
    float before_lane;
    before_lane = tf_shuffle_up<0xffffffffu>(y_total[chunk_4], 1, 32);
    if (lane_of_warp >= 1) {
      before_vector[chunk_4] = (before_vector[chunk_4] + before_lane);
    }
  }
  float y_1;
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_5 = 0; chunk_5 < 7; ++chunk_5) {
    const int vector_2 = 160 * chunk_5 + thread;
    if (vector_2 < 1025) {
      y_1 = 0.0f;
      alignas(16) float y_out[4];
      #pragma unroll
      for (int v_2 = 0; v_2 < 4; ++v_2) {
        if (-4097 * block + 4 * first_vector + v_2 + 4 * vector_2 >= 0 && -4097 * block + 4 * first_vector + v_2 + 4 * vector_2 < 4097) {
          y_1 = (y_1 + (-4097 * block + 4 * first_vector + v_2 + 4 * vector_2 < 1 ? 0.0f : x_v[4 * chunk_5 + v_2]));
          float y_2 = (before_vector[chunk_5] + y_1);
          y_out[v_2] = y_2;
        }
      }
      if (-4097 * block + 4 * first_vector + 4 * vector_2 >= 0 && -4097 * block + 4 * first_vector + 4 * vector_2 < 4094) {
        tf_vector_store<4>(y + 4 * first_vector + 4 * vector_2, y_out);
      } else {
        #pragma unroll
        for (int v_3 = 0; v_3 < 4; ++v_3) {
          if (-4097 * block + 4 * first_vector + v_3 + 4 * vector_2 >= 0 && -4097 * block + 4 * first_vector + v_3 + 4 * vector_2 < 4097) {
            y[4 * first_vector + v_3 + 4 * vector_2] = y_out[v_3];
          }
        }
      }
    }
  }
}
