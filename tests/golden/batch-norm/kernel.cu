// k_y_rstd: 1024 blocks of 224 threads, clusters of 4, 96 bytes of shared memory, for sm_90a
// nodes: %q, %s, %rstd, %y
// schedule: q [GRID,CLUSTER_4-CTA_224,CTA,CTA]C; s [GRID,CLUSTER_4-CTA_224,CTA,CTA]C; rstd [GRID]; y [GRID,CLUSTER_4-CTA_224,CTA,CTA]; vector=8; chunks=7; on_chip=true; lanes=2; resident=4; cta_num=1024; cta_size=224;
// reads 25691136 bytes, writes 25691136 bytes
extern "C" __global__ void __launch_bounds__(224, 4)
k_y_rstd(
    const tf_f16* __restrict__ x,
    const float* __restrict__ g,
    tf_f16* __restrict__ y,
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
  float g_at = g[group_];
  alignas(16) tf_f16 x_v[56];
  // %x: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 7; ++chunk) {
    const int vector = 224 * chunk + 1568 * rank + thread;
    tf_vector_load_stream<8>(x_v + 8 * chunk, x + 784 * group_ + 8 * vector + 199920 * tf_index_div(vector, 98));
  }
  // every block of the cluster runs before another writes to its shared memory
  tf_cluster_meet();
  // %s (reduce.sum) and %q, squares about each vector's mean: threads -> warp -> cluster
  alignas(16) float s[7];
  alignas(16) float s_squares[7];
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 7; ++chunk_1) {
    const int vector_1 = 224 * chunk_1 + 1568 * rank + thread;
    alignas(16) float s_x[8];
    s[chunk_1] = 0.0f;
    s_squares[chunk_1] = 0.0f;
    #pragma unroll
    for (int v = 0; v < 8; ++v) {
      s_x[v] = tf_float(x_v[8 * chunk_1 + v]);
      s[chunk_1] = (s[chunk_1] + s_x[v]);
    }
    float mean_of_vector = (s[chunk_1] * 0.125f);
    #pragma unroll
    for (int v_1 = 0; v_1 < 8; ++v_1) {
      float off = (s_x[v_1] - mean_of_vector);
      s_squares[chunk_1] = (s_squares[chunk_1] + (off * off));
    }
  }
  float apart = ((s[0] - s[1]) * 0.125f);
  s_squares[0] = ((s_squares[0] + s_squares[1]) + ((apart * apart) * 4.0f));
  s[0] = (s[0] + s[1]);
  float apart_1 = ((s[2] - s[3]) * 0.125f);
  s_squares[2] = ((s_squares[2] + s_squares[3]) + ((apart_1 * apart_1) * 4.0f));
  s[2] = (s[2] + s[3]);
  float apart_2 = ((s[4] - s[5]) * 0.125f);
  s_squares[4] = ((s_squares[4] + s_squares[5]) + ((apart_2 * apart_2) * 4.0f));
  s[4] = (s[4] + s[5]);
  float apart_3 = ((s[0] - s[2]) * 0.0625f);
  s_squares[0] = ((s_squares[0] + s_squares[2]) + ((apart_3 * apart_3) * 8.0f));
  s[0] = (s[0] + s[2]);
  float apart_4 = ((s[4] * 0.0625f) - (s[6] * 0.125f));
  s_squares[4] = ((s_squares[4] + s_squares[6]) + ((apart_4 * apart_4) * 5.3333335f));
  s[4] = (s[4] + s[6]);
  float apart_5 = ((s[0] * 0.03125f) - (s[4] * 0.041666668f));
  s_squares[0] = ((s_squares[0] + s_squares[4]) + ((apart_5 * apart_5) * 13.714286f));
  s[0] = (s[0] + s[4]);
  float s_other;
  s_other = tf_shuffle_xor<0xffffffffu>(s[0], 16, 32);
  float s_squares_other;
  s_squares_other = tf_shuffle_xor<0xffffffffu>(s_squares[0], 16, 32);
  float apart_6 = ((s[0] - s_other) * 0.017857144f);
  s_squares[0] = ((s_squares[0] + s_squares_other) + ((apart_6 * apart_6) * 28.0f));
  s[0] = (s[0] + s_other);
  float s_other_1;
  s_other_1 = tf_shuffle_xor<0xffffffffu>(s[0], 8, 32);
  float s_squares_other_1;
  s_squares_other_1 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 8, 32);
  float apart_7 = ((s[0] - s_other_1) * 0.008928572f);
  s_squares[0] = ((s_squares[0] + s_squares_other_1) + ((apart_7 * apart_7) * 56.0f));
  s[0] = (s[0] + s_other_1);
  float s_other_2;
  s_other_2 = tf_shuffle_xor<0xffffffffu>(s[0], 4, 32);
  float s_squares_other_2;
  s_squares_other_2 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 4, 32);
  float apart_8 = ((s[0] - s_other_2) * 0.004464286f);
  s_squares[0] = ((s_squares[0] + s_squares_other_2) + ((apart_8 * apart_8) * 112.0f));
  s[0] = (s[0] + s_other_2);
  float s_other_3;
  s_other_3 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 32);
  float s_squares_other_3;
  s_squares_other_3 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 2, 32);
  float apart_9 = ((s[0] - s_other_3) * 0.002232143f);
  s_squares[0] = ((s_squares[0] + s_squares_other_3) + ((apart_9 * apart_9) * 224.0f));
  s[0] = (s[0] + s_other_3);
  float s_other_4;
  s_other_4 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 32);
  float s_squares_other_4;
  s_squares_other_4 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 1, 32);
  float apart_10 = ((s[0] - s_other_4) * 0.0011160715f);
  s_squares[0] = ((s_squares[0] + s_squares_other_4) + ((apart_10 * apart_10) * 448.0f));
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
  if (lane_of_slot < 7) {
    s_slot = s_shared[lane_of_slot];
    s_squares_slot = q_shared[lane_of_slot];
  }
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
  float mean_of_slots = (s[0] * 7.9719386e-05f);
  if (lane_of_slot < 7) {
    float apart_11 = ((s_slot * 0.00055803574f) - mean_of_slots);
    s_squares_slot = (s_squares_slot + ((apart_11 * apart_11) * 1792.0f));
  }
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
  float mean_of_slots_1 = (s[0] * 1.9929847e-05f);
  float apart_12 = ((s_slot_1 * 7.9719386e-05f) - mean_of_slots_1);
  s_squares_slot_1 = (s_squares_slot_1 + ((apart_12 * apart_12) * 12544.0f));
  s_squares[0] = s_squares_slot_1;
  float s_squares_other_8;
  s_squares_other_8 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 2, 4);
  s_squares[0] = (s_squares[0] + s_squares_other_8);
  float s_squares_other_9;
  s_squares_other_9 = tf_shuffle_xor<0xffffffffu>(s_squares[0], 1, 4);
  s_squares[0] = (s_squares[0] + s_squares_other_9);
  float rstd_1 = rsqrtf(((s_squares[0] * 1.9929847e-05f) + 1e-05f));
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 7; ++chunk_2) {
    const int vector_2 = 224 * chunk_2 + 1568 * rank + thread;
    alignas(16) tf_f16 y_out[8];
    #pragma unroll
    for (int v_2 = 0; v_2 < 8; ++v_2) {
      tf_f16 y_1 = tf_f16(tf_maximum(((tf_float(x_v[8 * chunk_2 + v_2]) - (s[0] * 1.9929847e-05f)) * (rstd_1 * g_at)), 0.0f));
      y_out[v_2] = y_1;
    }
    tf_vector_store<8>(y + 784 * group_ + 8 * vector_2 + 199920 * tf_index_div(vector_2, 98), y_out);
  }
  // %rstd: one value a row
  if (thread < 1 && rank < 1) {
    rstd[group_] = rstd_1;
  }
}
