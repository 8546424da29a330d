// k_y_mean: 4096 blocks of 256 threads, clusters of 4, 96 bytes of shared memory, for sm_90a
// nodes: %s, %q, %mean, %rstd, %y
// schedule: s [GRID,CLUSTER_4-CTA_256]C; q [GRID,CLUSTER_4-CTA_256]C; mean [GRID]; rstd [GRID]; y [GRID,CLUSTER_4-CTA_256]; vector=4; chunks=8; on_chip=true; lanes=2; resident=3; cta_num=4096; cta_size=256;
// reads 134479872 bytes, writes 134225920 bytes
extern "C" __global__ void __launch_bounds__(256, 3)
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
  float* const s_shared = reinterpret_cast<float*>(tf_shared);
  float* const q_shared = reinterpret_cast<float*>(tf_shared + 32);
  float* const s_blocks = reinterpret_cast<float*>(tf_shared + 64);
  float* const q_blocks = reinterpret_cast<float*>(tf_shared + 80);
  __shared__ __align__(8) unsigned long long tf_arrivals[1];
  tf_bulk_init(tf_arrivals, 1);
  tf_wait_for_earlier_kernel();
  const int group_ = (block >> 2);
  alignas(16) float x_v[32];
  // %x: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    const int vector = 256 * chunk + 2048 * rank + thread;
    tf_vector_load_stream<4>(x_v + 4 * chunk, x + 32768 * group_ + 4 * vector);
  }
  // every block of the cluster runs before another writes to its shared memory
  tf_cluster_meet();
  // %s (reduce.sum) and %q, squares about each vector's mean: threads -> warp -> cluster
  alignas(16) float s[8];
  alignas(16) float s_squares[8];
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 8; ++chunk_1) {
    const int vector_1 = 256 * chunk_1 + 2048 * rank + thread;
    alignas(16) float s_x[4];
    s[chunk_1] = 0.0f;
    s_squares[chunk_1] = 0.0f;
    #pragma unroll
    for (int v = 0; v < 4; ++v) {
      s_x[v] = x_v[4 * chunk_1 + v];
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
  float apart_2 = ((s[4] - s[5]) * 0.25f);
  s_squares[4] = ((s_squares[4] + s_squares[5]) + ((apart_2 * apart_2) * 2.0f));
  s[4] = (s[4] + s[5]);
  float apart_3 = ((s[6] - s[7]) * 0.25f);
  s_squares[6] = ((s_squares[6] + s_squares[7]) + ((apart_3 * apart_3) * 2.0f));
  s[6] = (s[6] + s[7]);
  float apart_4 = ((s[0] - s[2]) * 0.125f);
  s_squares[0] = ((s_squares[0] + s_squares[2]) + ((apart_4 * apart_4) * 4.0f));
  s[0] = (s[0] + s[2]);
  float apart_5 = ((s[4] - s[6]) * 0.125f);
  s_squares[4] = ((s_squares[4] + s_squares[6]) + ((apart_5 * apart_5) * 4.0f));
  s[4] = (s[4] + s[6]);
  float apart_6 = ((s[0] - s[4]) * 0.0625f);
  s_squares[0] = ((s_squares[0] + s_squares[4]) + ((apart_6 * apart_6) * 8.0f));
  s[0] = (s[0] + s[4]);
  float s_other;
  s_other = tf_shuffle_xor<0xffffffffu>(s[0], 16, 32);
  float s_squares_other;
  s_squares_other = tf_shuffle_xor<0xffffffffu>(s_squares[0], 16, 32);
  float apart_7 = ((s[0] - s_other) * 0.03125f);
  s_squares[0] = ((s_squares[0] + s_squares_other) + ((apart_7 * apart_7) * 16.0f));
  s[0] = (s[0] + s_other);
  float s_other_1;
  s_other_1 = tf_shuffle_xor<0xffffffffu>(s[0], 8, 32);
  float s_squares_other_1;
  s_squares_other_1 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 8, 32);
  float apart_8 = ((s[0] - s_other_1) * 0.015625f);
  s_squares[0] = ((s_squares[0] + s_squares_other_1) + ((apart_8 * apart_8) * 32.0f));
  s[0] = (s[0] + s_other_1);
  float s_other_2;
  s_other_2 = tf_shuffle_xor<0xffffffffu>(s[0], 4, 32);
  float s_squares_other_2;
  s_squares_other_2 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 4, 32);
  float apart_9 = ((s[0] - s_other_2) * 0.0078125f);
  s_squares[0] = ((s_squares[0] + s_squares_other_2) + ((apart_9 * apart_9) * 64.0f));
  s[0] = (s[0] + s_other_2);
  float s_other_3;
  s_other_3 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 32);
  float s_squares_other_3;
  s_squares_other_3 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 2, 32);
  float apart_10 = ((s[0] - s_other_3) * 0.00390625f);
  s_squares[0] = ((s_squares[0] + s_squares_other_3) + ((apart_10 * apart_10) * 128.0f));
  s[0] = (s[0] + s_other_3);
  float s_other_4;
  s_other_4 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 32);
  float s_squares_other_4;
  s_squares_other_4 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 1, 32);
  float apart_11 = ((s[0] - s_other_4) * 0.001953125f);
  s_squares[0] = ((s_squares[0] + s_squares_other_4) + ((apart_11 * apart_11) * 256.0f));
  s[0] = (s[0] + s_other_4);
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  if (lane_of_warp < 1) {
    s_shared[warp_1] = s[0];
    q_shared[warp_1] = s_squares[0];
  }
  __syncthreads();
  const int lane_of_slot = (thread & 7);
  float s_slot = 0.0f;
  float s_squares_slot = 0.0f;
  s_slot = s_shared[lane_of_slot];
  s_squares_slot = q_shared[lane_of_slot];
  s[0] = s_slot;
  float s_other_5;
  s_other_5 = tf_shuffle_xor<0xffffffffu>(s[0], 4, 8);
  s[0] = (s[0] + s_other_5);
  float s_other_6;
  s_other_6 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 8);
  s[0] = (s[0] + s_other_6);
  float s_other_7;
  s_other_7 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 8);
  s[0] = (s[0] + s_other_7);
  float mean_of_slots = (s[0] * 0.00012207031f);
  float apart_12 = ((s_slot * 0.0009765625f) - mean_of_slots);
  s_squares_slot = (s_squares_slot + ((apart_12 * apart_12) * 1024.0f));
  s_squares[0] = s_squares_slot;
  float s_squares_other_5;
  s_squares_other_5 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 4, 8);
  s_squares[0] = (s_squares[0] + s_squares_other_5);
  float s_squares_other_6;
  s_squares_other_6 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 2, 8);
  s_squares[0] = (s_squares[0] + s_squares_other_6);
  float s_squares_other_7;
  s_squares_other_7 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 1, 8);
  s_squares[0] = (s_squares[0] + s_squares_other_7);
  if (thread < 4) {
    tf_cluster_send(s_blocks + rank, thread, s[0], tf_arrivals + 0);
    tf_cluster_send(q_blocks + rank, thread, s_squares[0], tf_arrivals + 0);
  }
  tf_cluster_receive(tf_arrivals + 0, 0, 32);
  const int lane_of_slot_1 = (thread & 3);
  float s_slot_1 = 0.0f;
  float s_squares_slot_1 = 0.0f;
  s_slot_1 = s_blocks[lane_of_slot_1];
  s_squares_slot_1 = q_blocks[lane_of_slot_1];
  s[0] = s_slot_1;
  float s_other_8;
  s_other_8 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 4);
  s[0] = (s[0] + s_other_8);
  float s_other_9;
  s_other_9 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 4);
  s[0] = (s[0] + s_other_9);
  float mean_of_slots_1 = (s[0] * 3.0517578e-05f);
  float apart_13 = ((s_slot_1 * 0.00012207031f) - mean_of_slots_1);
  s_squares_slot_1 = (s_squares_slot_1 + ((apart_13 * apart_13) * 8192.0f));
  s_squares[0] = s_squares_slot_1;
  float s_squares_other_8;
  s_squares_other_8 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 2, 4);
  s_squares[0] = (s_squares[0] + s_squares_other_8);
  float s_squares_other_9;
  s_squares_other_9 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 1, 4);
  s_squares[0] = (s_squares[0] + s_squares_other_9);
  float rstd_1 = rsqrtf(((s_squares[0] * 3.0517578e-05f) + 1e-05f));
  float mean_1 = (s[0] * 3.0517578e-05f);
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 8; ++chunk_2) {
    const int vector_2 = 256 * chunk_2 + 2048 * rank + thread;
    alignas(16) float w_v[4];
    alignas(16) float b_v[4];
    tf_vector_load<4>(w_v, w + 4 * vector_2);
    tf_vector_load<4>(b_v, b + 4 * vector_2);
    alignas(16) float y_out[4];
    #pragma unroll
    for (int v_2 = 0; v_2 < 4; ++v_2) {
      float y_1 = ((((x_v[4 * chunk_2 + v_2] - mean_1) * rstd_1) * w_v[v_2]) + b_v[v_2]);
      y_out[v_2] = y_1;
    }
    tf_vector_store<4>(y + 32768 * group_ + 4 * vector_2, y_out);
  }
  // %mean, %rstd: one value a row
  if (thread < 1 && rank < 1) {
    mean[group_] = mean_1;
    rstd[group_] = rstd_1;
  }
}
