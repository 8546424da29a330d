// k_y_mean: 2048 blocks of 512 threads, clusters of 2, 256 bytes of shared memory, for sm_90a
// nodes: %s, %q, %mean, %rstd, %y
// schedule: reduce [GRID_1,CLUSTER_2-CTA_512]R chunks 8 vector 4
// reads 134479872 bytes, writes 134225920 bytes
extern "C" __global__ void __launch_bounds__(512)
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
  float* const q_shared = reinterpret_cast<float*>(tf_shared + 128);
  __shared__ __align__(8) unsigned long long tf_arrivals[2];
  tf_bulk_init(tf_arrivals, 2);
  const int group_ = (block >> 1);
  alignas(16) float x_v[32];
  // %x: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    const int vector = 512 * chunk + 4096 * rank + thread;
    tf_vector_load_stream<4>(x_v + 4 * chunk, x + 32768 * group_ + 4 * vector);
  }
  // every block of the cluster runs before another writes to its shared memory
  tf_cluster_barrier();
  // %s (reduce.sum): threads -> warp -> block -> cluster
  alignas(16) float s[2];
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    s[v] = 0.0f;
  }
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 8; ++chunk_1) {
    const int vector_1 = 512 * chunk_1 + 4096 * rank + thread;
    #pragma unroll
    for (int v_1 = 0; v_1 < 4; ++v_1) {
      s[(v_1 & 1)] = (s[(v_1 & 1)] + x_v[4 * chunk_1 + v_1]);
    }
  }
  s[0] = (s[0] + s[1]);
  float s_other;
  s_other = tf_shuffle_xor<0xffffffffu>(s[0], 16, 32);
  s[0] = (s[0] + s_other);
  float s_other_1;
  s_other_1 = tf_shuffle_xor<0xffffffffu>(s[0], 8, 32);
  s[0] = (s[0] + s_other_1);
  float s_other_2;
  s_other_2 = tf_shuffle_xor<0xffffffffu>(s[0], 4, 32);
  s[0] = (s[0] + s_other_2);
  float s_other_3;
  s_other_3 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 32);
  s[0] = (s[0] + s_other_3);
  float s_other_4;
  s_other_4 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 32);
  s[0] = (s[0] + s_other_4);
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  if (lane_of_warp < 2) {
    tf_cluster_send(s_shared + 16 * rank + warp_1, lane_of_warp, s[0], tf_arrivals + 0);
  }
  tf_cluster_receive(tf_arrivals + 0, 0, 128);
  const int lane_of_warp_1 = (thread & 31);
  s[0] = 0.0f;
  float s_other_5 = s_shared[lane_of_warp_1];
  s[0] = (s[0] + s_other_5);
  float s_other_6;
  s_other_6 = tf_shuffle_xor<0xffffffffu>(s[0], 16, 32);
  s[0] = (s[0] + s_other_6);
  float s_other_7;
  s_other_7 = tf_shuffle_xor<0xffffffffu>(s[0], 8, 32);
  s[0] = (s[0] + s_other_7);
  float s_other_8;
  s_other_8 = tf_shuffle_xor<0xffffffffu>(s[0], 4, 32);
  s[0] = (s[0] + s_other_8);
  float s_other_9;
  s_other_9 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 32);
  s[0] = (s[0] + s_other_9);
  float s_other_10;
  s_other_10 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 32);
  s[0] = (s[0] + s_other_10);
  // %q (reduce.sum): threads -> warp -> block -> cluster
  alignas(16) float q[2];
  #pragma unroll
  for (int v_2 = 0; v_2 < 2; ++v_2) {
    q[v_2] = 0.0f;
  }
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 8; ++chunk_2) {
    const int vector_2 = 512 * chunk_2 + 4096 * rank + thread;
    #pragma unroll
    for (int v_3 = 0; v_3 < 4; ++v_3) {
      float q_x = ((x_v[4 * chunk_2 + v_3] - (s[0] * 3.0517578e-05f)) * (x_v[4 * chunk_2 + v_3] - (s[0] * 3.0517578e-05f)));
      q[(v_3 & 1)] = (q[(v_3 & 1)] + q_x);
    }
  }
  q[0] = (q[0] + q[1]);
  float q_other;
  q_other = tf_shuffle_xor<0xffffffffu>(q[0], 16, 32);
  q[0] = (q[0] + q_other);
  float q_other_1;
  q_other_1 = tf_shuffle_xor<0xffffffffu>(q[0], 8, 32);
  q[0] = (q[0] + q_other_1);
  float q_other_2;
  q_other_2 = tf_shuffle_xor<0xffffffffu>(q[0], 4, 32);
  q[0] = (q[0] + q_other_2);
  float q_other_3;
  q_other_3 = tf_shuffle_xor<0xffffffffu>(q[0], 2, 32);
  q[0] = (q[0] + q_other_3);
  float q_other_4;
  q_other_4 = tf_shuffle_xor<0xffffffffu>(q[0], 1, 32);
  q[0] = (q[0] + q_other_4);
  const int warp_2 = (thread >> 5);
  const int lane_of_warp_2 = (thread & 31);
  if (lane_of_warp_2 < 2) {
    tf_cluster_send(q_shared + 16 * rank + warp_2, lane_of_warp_2, q[0], tf_arrivals + 1);
  }
  tf_cluster_receive(tf_arrivals + 1, 0, 128);
  const int lane_of_warp_3 = (thread & 31);
  q[0] = 0.0f;
  float q_other_5 = q_shared[lane_of_warp_3];
  q[0] = (q[0] + q_other_5);
  float q_other_6;
  q_other_6 = tf_shuffle_xor<0xffffffffu>(q[0], 16, 32);
  q[0] = (q[0] + q_other_6);
  float q_other_7;
  q_other_7 = tf_shuffle_xor<0xffffffffu>(q[0], 8, 32);
  q[0] = (q[0] + q_other_7);
  float q_other_8;
  q_other_8 = tf_shuffle_xor<0xffffffffu>(q[0], 4, 32);
  q[0] = (q[0] + q_other_8);
  float q_other_9;
  q_other_9 = tf_shuffle_xor<0xffffffffu>(q[0], 2, 32);
  q[0] = (q[0] + q_other_9);
  float q_other_10;
  q_other_10 = tf_shuffle_xor<0xffffffffu>(q[0], 1, 32);
  q[0] = (q[0] + q_other_10);
  float rstd_1 = rsqrtf(((q[0] * 3.0517578e-05f) + 1e-05f));
  float mean_1 = (s[0] * 3.0517578e-05f);
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_3 = 0; chunk_3 < 8; ++chunk_3) {
    const int vector_3 = 512 * chunk_3 + 4096 * rank + thread;
    alignas(16) float w_v[4];
    alignas(16) float b_v[4];
    tf_vector_load<4>(w_v, w + 4 * vector_3);
    tf_vector_load<4>(b_v, b + 4 * vector_3);
    alignas(16) float y_out[4];
    #pragma unroll
    for (int v_4 = 0; v_4 < 4; ++v_4) {
      float y_1 = ((((x_v[4 * chunk_3 + v_4] - mean_1) * rstd_1) * w_v[v_4]) + b_v[v_4]);
      y_out[v_4] = y_1;
    }
    tf_vector_store_stream<4>(y + 32768 * group_ + 4 * vector_3, y_out);
  }
  // %mean, %rstd: one value a row
  if (thread < 1 && rank < 1) {
    mean[group_] = mean_1;
    rstd[group_] = rstd_1;
  }
}
