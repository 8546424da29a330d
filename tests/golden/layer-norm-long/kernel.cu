// k_y_mean: 120 blocks of 512 threads, clusters of 4, 131712 bytes of shared memory, for sm_90a
// nodes: %s, %q, %mean, %rstd, %y
// schedule: s [GRID_30,CLUSTER_4-CTA_512]C; q [GRID_30,CLUSTER_4-CTA_512]C; mean [GRID_30]; rstd [GRID_30]; y [GRID_30,CLUSTER_4-CTA_512]; vector=4; chunks=4; on_chip=false; lanes=2; batch=4; stages=4; resident=1; ahead=true; cta_num=120; cta_size=512;
// reads 134479872 bytes, writes 134225920 bytes
extern "C" __global__ void __launch_bounds__(512, 1)
k_y_mean(
    const float* __restrict__ x,
    const float* __restrict__ w,
    const float* __restrict__ b,
    float* __restrict__ y,
    float* __restrict__ mean,
    float* __restrict__ rstd) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  const int rank = tf_cluster_rank();
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const x_queue = reinterpret_cast<float*>(tf_shared);
  float* const s_shared = reinterpret_cast<float*>(tf_shared + 131072);
  float* const q_shared = reinterpret_cast<float*>(tf_shared + 131328);
  float* const s_blocks = reinterpret_cast<float*>(tf_shared + 131584);
  float* const q_blocks = reinterpret_cast<float*>(tf_shared + 131648);
  __shared__ __align__(8) unsigned long long tf_arrivals[8];
  tf_bulk_init(tf_arrivals, 8);
  tf_wait_for_earlier_kernel();
  const int group_ = (block >> 2);
  // %x: the first 4 rows start on their way to shared memory
  #pragma unroll
  for (int ahead = 0; ahead < 4; ++ahead) {
    const int next_row = 30 * ahead + group_;
    tf_bulk_copy(x_queue + 8192 * ahead, x + 32768 * next_row + 8192 * rank, 32768, tf_arrivals + ahead, true);
  }
  // every block of the cluster runs before another writes to its shared memory
  tf_cluster_meet();
  alignas(16) float w_v[16];
  alignas(16) float b_v[16];
  // %w, %b: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    const int vector = 512 * chunk + 2048 * rank + thread;
    tf_vector_load<4>(w_v + 4 * chunk, w + 4 * vector);
    tf_vector_load<4>(b_v + 4 * chunk, b + 4 * vector);
  }
  const int row_unwrapped = group_ + 30;
  const int row_ahead = (row_unwrapped & 1023);
  tf_bulk_wait(tf_arrivals + 0, 0);
  // %s (reduce.sum) and %q, squares about each vector's mean: threads -> warp -> cluster
  alignas(16) float s[4];
  alignas(16) float s_squares[4];
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 4; ++chunk_1) {
    const int vector_1 = 512 * chunk_1 + 2048 * rank + thread;
    alignas(16) float x_v[4];
    tf_vector_load<4>(x_v, x_queue + 2048 * chunk_1 + 4 * thread);
    alignas(16) float s_x[4];
    s[chunk_1] = 0.0f;
    s_squares[chunk_1] = 0.0f;
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      s_x[v] = x_v[v];
      s[chunk_1] = (s[chunk_1] + s_x[v]);
    }
    float mean_of_vector = (s[chunk_1] * 0.25f);
    #pragma unroll
    for (int v_1 = 0; v_1 < 4; ++v_1) {
      float off = (s_x[v_1] - mean_of_vector);
      s_squares[chunk_1] = (s_squares[chunk_1] + (off * off));
    }
  }
  float apart = ((s[0] - s[1]) * 0.25f);
  s_squares[0] = ((s_squares[0] + s_squares[1]) + ((apart * apart) * 2.0f));
  s[0] = (s[0] + s[1]);
  float apart_1 = ((s[2] - s[3]) * 0.25f);
  s_squares[2] = ((s_squares[2] + s_squares[3]) + ((apart_1 * apart_1) * 2.0f));
  s[2] = (s[2] + s[3]);
  float apart_2 = ((s[0] - s[2]) * 0.125f);
  s_squares[0] = ((s_squares[0] + s_squares[2]) + ((apart_2 * apart_2) * 4.0f));
  s[0] = (s[0] + s[2]);
  float s_other;
  s_other = tf_shuffle_xor<0xffffffffu>(s[0], 16, 32);
  float s_squares_other;
  s_squares_other = tf_shuffle_xor<0xffffffffu>(s_squares[0], 16, 32);
  float apart_3 = ((s[0] - s_other) * 0.0625f);
  s_squares[0] = ((s_squares[0] + s_squares_other) + ((apart_3 * apart_3) * 8.0f));
  s[0] = (s[0] + s_other);
  float s_other_1;
  s_other_1 = tf_shuffle_xor<0xffffffffu>(s[0], 8, 32);
  float s_squares_other_1;
  s_squares_other_1 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 8, 32);
  float apart_4 = ((s[0] - s_other_1) * 0.03125f);
  s_squares[0] = ((s_squares[0] + s_squares_other_1) + ((apart_4 * apart_4) * 16.0f));
  s[0] = (s[0] + s_other_1);
  float s_other_2;
  s_other_2 = tf_shuffle_xor<0xffffffffu>(s[0], 4, 32);
  float s_squares_other_2;
  s_squares_other_2 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 4, 32);
  float apart_5 = ((s[0] - s_other_2) * 0.015625f);
  s_squares[0] = ((s_squares[0] + s_squares_other_2) + ((apart_5 * apart_5) * 32.0f));
  s[0] = (s[0] + s_other_2);
  float s_other_3;
  s_other_3 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 32);
  float s_squares_other_3;
  s_squares_other_3 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 2, 32);
  float apart_6 = ((s[0] - s_other_3) * 0.0078125f);
  s_squares[0] = ((s_squares[0] + s_squares_other_3) + ((apart_6 * apart_6) * 64.0f));
  s[0] = (s[0] + s_other_3);
  float s_other_4;
  s_other_4 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 32);
  float s_squares_other_4;
  s_squares_other_4 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 1, 32);
  float apart_7 = ((s[0] - s_other_4) * 0.00390625f);
  s_squares[0] = ((s_squares[0] + s_squares_other_4) + ((apart_7 * apart_7) * 128.0f));
  s[0] = (s[0] + s_other_4);
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  if (lane_of_warp < 1) {
    s_shared[warp_1] = s[0];
    q_shared[warp_1] = s_squares[0];
  }
  __syncthreads();
  const int lane_of_slot = (thread & 15);
  float s_slot = 0.0f;
  float s_squares_slot = 0.0f;
  s_slot = s_shared[lane_of_slot];
  s_squares_slot = q_shared[lane_of_slot];
  s[0] = s_slot;
  float s_other_5;
  s_other_5 = tf_shuffle_xor<0xffffffffu>(s[0], 8, 16);
  s[0] = (s[0] + s_other_5);
  float s_other_6;
  s_other_6 = tf_shuffle_xor<0xffffffffu>(s[0], 4, 16);
  s[0] = (s[0] + s_other_6);
  float s_other_7;
  s_other_7 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 16);
  s[0] = (s[0] + s_other_7);
  float s_other_8;
  s_other_8 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 16);
  s[0] = (s[0] + s_other_8);
  float mean_of_slots = (s[0] * 0.00012207031f);
  float apart_8 = ((s_slot * 0.001953125f) - mean_of_slots);
  s_squares_slot = (s_squares_slot + ((apart_8 * apart_8) * 512.0f));
  s_squares[0] = s_squares_slot;
  float s_squares_other_5;
  s_squares_other_5 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 8, 16);
  s_squares[0] = (s_squares[0] + s_squares_other_5);
  float s_squares_other_6;
  s_squares_other_6 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 4, 16);
  s_squares[0] = (s_squares[0] + s_squares_other_6);
  float s_squares_other_7;
  s_squares_other_7 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 2, 16);
  s_squares[0] = (s_squares[0] + s_squares_other_7);
  float s_squares_other_8;
  s_squares_other_8 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 1, 16);
  s_squares[0] = (s_squares[0] + s_squares_other_8);
  if (thread < 4) {
    tf_cluster_send(s_blocks + rank, thread, s[0], tf_arrivals + 4);
    tf_cluster_send(q_blocks + rank, thread, s_squares[0], tf_arrivals + 4);
  }
  for (int turn = 0; turn < 35; ++turn) {
    const int row = group_ + 30 * turn;
    const int row_wrapped = (row & 1023);
    const int parity = (turn & 3);
    if (turn < 34) {
      const int row_1 = group_ + 30 * turn + 30;
      const int row_wrapped_1 = (row_1 & 1023);
      const int parity_1 = ((turn + 1) & 3);
      const int row_unwrapped_1 = group_ + 30 * turn + 60;
      const int row_ahead_1 = (row_unwrapped_1 & 1023);
      const int stage = ((turn + 1) & 3);
      tf_bulk_wait(tf_arrivals + stage, (((turn + 1) >> 2) & 1));
      // %s (reduce.sum) and %q, squares about each vector's mean: threads -> warp -> cluster
      alignas(16) float s_1[4];
      alignas(16) float s_squares_1[4];
      #pragma unroll
      for (int chunk_2 = 0; chunk_2 < 4; ++chunk_2) {
        const int vector_2 = 512 * chunk_2 + 2048 * rank + thread;
        alignas(16) float x_v_1[4];
        tf_vector_load<4>(x_v_1, x_queue + 2048 * chunk_2 + 8192 * stage + 4 * thread);
        alignas(16) float s_x_1[4];
        s_1[chunk_2] = 0.0f;
        s_squares_1[chunk_2] = 0.0f;
        #pragma unroll
        for (int v_2 = 0; v_2 < 4; ++v_2) {
          s_x_1[v_2] = x_v_1[v_2];
          s_1[chunk_2] = (s_1[chunk_2] + s_x_1[v_2]);
        }
        float mean_of_vector_1 = (s_1[chunk_2] * 0.25f);
        #pragma unroll
        for (int v_3 = 0; v_3 < 4; ++v_3) {
          float off_1 = (s_x_1[v_3] - mean_of_vector_1);
          s_squares_1[chunk_2] = (s_squares_1[chunk_2] + (off_1 * off_1));
        }
      }
      float apart_9 = ((s_1[0] - s_1[1]) * 0.25f);
      s_squares_1[0] = ((s_squares_1[0] + s_squares_1[1]) + ((apart_9 * apart_9) * 2.0f));
      s_1[0] = (s_1[0] + s_1[1]);
      float apart_10 = ((s_1[2] - s_1[3]) * 0.25f);
      s_squares_1[2] = ((s_squares_1[2] + s_squares_1[3]) + ((apart_10 * apart_10) * 2.0f));
      s_1[2] = (s_1[2] + s_1[3]);
      float apart_11 = ((s_1[0] - s_1[2]) * 0.125f);
      s_squares_1[0] = ((s_squares_1[0] + s_squares_1[2]) + ((apart_11 * apart_11) * 4.0f));
      s_1[0] = (s_1[0] + s_1[2]);
      float s_1_other;
      s_1_other = tf_shuffle_xor<0xffffffffu>(s_1[0], 16, 32);
      float s_squares_1_other;
      s_squares_1_other = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 16, 32);
      float apart_12 = ((s_1[0] - s_1_other) * 0.0625f);
      s_squares_1[0] = ((s_squares_1[0] + s_squares_1_other) + ((apart_12 * apart_12) * 8.0f));
      s_1[0] = (s_1[0] + s_1_other);
      float s_1_other_1;
      s_1_other_1 = tf_shuffle_xor<0xffffffffu>(s_1[0], 8, 32);
      float s_squares_1_other_1;
      s_squares_1_other_1 = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 8, 32);
      float apart_13 = ((s_1[0] - s_1_other_1) * 0.03125f);
      s_squares_1[0] = ((s_squares_1[0] + s_squares_1_other_1) + ((apart_13 * apart_13) * 16.0f));
      s_1[0] = (s_1[0] + s_1_other_1);
      float s_1_other_2;
      s_1_other_2 = tf_shuffle_xor<0xffffffffu>(s_1[0], 4, 32);
      float s_squares_1_other_2;
      s_squares_1_other_2 = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 4, 32);
      float apart_14 = ((s_1[0] - s_1_other_2) * 0.015625f);
      s_squares_1[0] = ((s_squares_1[0] + s_squares_1_other_2) + ((apart_14 * apart_14) * 32.0f));
      s_1[0] = (s_1[0] + s_1_other_2);
      float s_1_other_3;
      s_1_other_3 = tf_shuffle_xor<0xffffffffu>(s_1[0], 2, 32);
      float s_squares_1_other_3;
      s_squares_1_other_3 = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 2, 32);
      float apart_15 = ((s_1[0] - s_1_other_3) * 0.0078125f);
      s_squares_1[0] = ((s_squares_1[0] + s_squares_1_other_3) + ((apart_15 * apart_15) * 64.0f));
      s_1[0] = (s_1[0] + s_1_other_3);
      float s_1_other_4;
      s_1_other_4 = tf_shuffle_xor<0xffffffffu>(s_1[0], 1, 32);
      float s_squares_1_other_4;
      s_squares_1_other_4 = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 1, 32);
      float apart_16 = ((s_1[0] - s_1_other_4) * 0.00390625f);
      s_squares_1[0] = ((s_squares_1[0] + s_squares_1_other_4) + ((apart_16 * apart_16) * 128.0f));
      s_1[0] = (s_1[0] + s_1_other_4);
      const int warp_2 = (thread >> 5);
      const int lane_of_warp_1 = (thread & 31);
      if (lane_of_warp_1 < 1) {
        s_shared[16 * parity_1 + warp_2] = s_1[0];
        q_shared[16 * parity_1 + warp_2] = s_squares_1[0];
      }
      __syncthreads();
      const int lane_of_slot_1 = (thread & 15);
      float s_1_slot = 0.0f;
      float s_squares_1_slot = 0.0f;
      s_1_slot = s_shared[lane_of_slot_1 + 16 * parity_1];
      s_squares_1_slot = q_shared[lane_of_slot_1 + 16 * parity_1];
      s_1[0] = s_1_slot;
      float s_1_other_5;
      s_1_other_5 = tf_shuffle_xor<0xffffffffu>(s_1[0], 8, 16);
      s_1[0] = (s_1[0] + s_1_other_5);
      float s_1_other_6;
      s_1_other_6 = tf_shuffle_xor<0xffffffffu>(s_1[0], 4, 16);
      s_1[0] = (s_1[0] + s_1_other_6);
      float s_1_other_7;
      s_1_other_7 = tf_shuffle_xor<0xffffffffu>(s_1[0], 2, 16);
      s_1[0] = (s_1[0] + s_1_other_7);
      float s_1_other_8;
      s_1_other_8 = tf_shuffle_xor<0xffffffffu>(s_1[0], 1, 16);
      s_1[0] = (s_1[0] + s_1_other_8);
      float mean_of_slots_1 = (s_1[0] * 0.00012207031f);
      float apart_17 = ((s_1_slot * 0.001953125f) - mean_of_slots_1);
      s_squares_1_slot = (s_squares_1_slot + ((apart_17 * apart_17) * 512.0f));
      s_squares_1[0] = s_squares_1_slot;
      float s_squares_1_other_5;
      s_squares_1_other_5 = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 8, 16);
      s_squares_1[0] = (s_squares_1[0] + s_squares_1_other_5);
      float s_squares_1_other_6;
      s_squares_1_other_6 = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 4, 16);
      s_squares_1[0] = (s_squares_1[0] + s_squares_1_other_6);
      float s_squares_1_other_7;
      s_squares_1_other_7 = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 2, 16);
      s_squares_1[0] = (s_squares_1[0] + s_squares_1_other_7);
      float s_squares_1_other_8;
      s_squares_1_other_8 = tf_shuffle_xor<0xffffffffu>(s_squares_1[0], 1, 16);
      s_squares_1[0] = (s_squares_1[0] + s_squares_1_other_8);
      if (thread < 4) {
        tf_cluster_send(s_blocks + 4 * parity_1 + rank, thread, s_1[0], tf_arrivals + (parity_1 + 4));
        tf_cluster_send(q_blocks + 4 * parity_1 + rank, thread, s_squares_1[0], tf_arrivals + (parity_1 + 4));
      }
    }
    const int stage_1 = (turn & 3);
    // %s: what the row's threads sent a turn ago
    float s_2;
    float s_squares_2;
    tf_cluster_receive(tf_arrivals + (parity + 4), ((turn >> 2) & 1), 32);
    const int lane_of_slot_2 = (thread & 3);
    float s_2_slot = 0.0f;
    float s_squares_2_slot = 0.0f;
    s_2_slot = s_blocks[lane_of_slot_2 + 4 * parity];
    s_squares_2_slot = q_blocks[lane_of_slot_2 + 4 * parity];
    s_2 = s_2_slot;
    float s_2_other;
    s_2_other = tf_shuffle_xor<0xffffffffu>(s_2, 2, 4);
    s_2 = (s_2 + s_2_other);
    float s_2_other_1;
    s_2_other_1 = tf_shuffle_xor<0xffffffffu>(s_2, 1, 4);
    s_2 = (s_2 + s_2_other_1);
    float mean_of_slots_2 = (s_2 * 3.0517578e-05f);
    float apart_18 = ((s_2_slot * 0.00012207031f) - mean_of_slots_2);
    s_squares_2_slot = (s_squares_2_slot + ((apart_18 * apart_18) * 8192.0f));
    s_squares_2 = s_squares_2_slot;
    float s_squares_2_other;
    s_squares_2_other = tf_shuffle_xor<0xffffffffu>(s_squares_2, 2, 4);
    s_squares_2 = (s_squares_2 + s_squares_2_other);
    float s_squares_2_other_1;
    s_squares_2_other_1 = tf_shuffle_xor<0xffffffffu>(s_squares_2, 1, 4);
    s_squares_2 = (s_squares_2 + s_squares_2_other_1);
    float rstd_1 = rsqrtf(((s_squares_2 * 3.0517578e-05f) + 1e-05f));
    float mean_1 = (s_2 * 3.0517578e-05f);
    // %y: registers -> global memory
    #pragma unroll
    for (int chunk_3 = 0; chunk_3 < 4; ++chunk_3) {
      const int vector_3 = 512 * chunk_3 + 2048 * rank + thread;
      if (row < 1024) {
        alignas(16) float x_v_2[4];
        tf_vector_load<4>(x_v_2, x_queue + 2048 * chunk_3 + 8192 * stage_1 + 4 * thread);
        alignas(16) float y_out[4];
        #pragma unroll
        for (int v_4 = 0; v_4 < 4; ++v_4) {
          float y_1 = ((((x_v_2[v_4] - mean_1) * rstd_1) * w_v[4 * chunk_3 + v_4]) + b_v[4 * chunk_3 + v_4]);
          y_out[v_4] = y_1;
        }
        tf_vector_store_stream<4>(y + 32768 * row_wrapped + 4 * vector_3, y_out);
      }
    }
    // %mean, %rstd: one value a row
    if (thread < 1 && row < 1024 && rank < 1) {
      mean[row_wrapped] = mean_1;
      rstd[row_wrapped] = rstd_1;
    }
    __syncthreads();
    if (turn < 31) {
      const int next_row_1 = ((group_ + 30 * turn + 120) & 1023);
      tf_bulk_copy(x_queue + 8192 * (turn & 3), x + 32768 * next_row_1 + 8192 * rank, 32768, tf_arrivals + (turn & 3), true);
    }
  }
}
