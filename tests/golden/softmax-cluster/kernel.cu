// k_y: 4096 blocks of 256 threads, clusters of 8, 128 bytes of shared memory, for sm_90a
// nodes: %m, %e, %s, %y
// schedule: m [GRID,CLUSTER_8-CTA_256]C; s [GRID,CLUSTER_8-CTA_256]C; y [GRID,CLUSTER_8-CTA_256]; vector=8; chunks=8; on_chip=true; lanes=2; resident=4; cta_num=4096; cta_size=256;
// reads 134217728 bytes, writes 134217728 bytes
extern "C" __global__ void __launch_bounds__(256, 4)
k_y(
    const tf_f16* __restrict__ x,
    tf_f16* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  const int rank = tf_cluster_rank();
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const m_shared = reinterpret_cast<float*>(tf_shared);
  float* const m_blocks = reinterpret_cast<float*>(tf_shared + 32);
  float* const s_shared = reinterpret_cast<float*>(tf_shared + 64);
  float* const s_blocks = reinterpret_cast<float*>(tf_shared + 96);
  __shared__ __align__(8) unsigned long long tf_arrivals[2];
  tf_bulk_init(tf_arrivals, 2);
  tf_wait_for_earlier_kernel();
  const int group_ = (block >> 3);
  alignas(16) tf_f16 x_v[64];
  // %x: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    const int vector = 256 * chunk + 2048 * rank + thread;
    tf_vector_load_stream<8>(x_v + 8 * chunk, x + 131072 * group_ + 8 * vector);
  }
  // every block of the cluster runs before another writes to its shared memory
  tf_cluster_meet();
  // %m (reduce.max): threads -> warp -> block -> cluster
  alignas(16) float m[2];
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    m[v] = (-tf_inf_f32());
  }
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 8; ++chunk_1) {
    const int vector_1 = 256 * chunk_1 + 2048 * rank + thread;
    #pragma unroll
    for (int v_1 = 0; v_1 < 8; ++v_1) {
      float m_x = tf_float(x_v[8 * chunk_1 + v_1]);
      m[(v_1 & 1)] = tf_maximum(m[(v_1 & 1)], m_x);
    }
  }
  m[0] = tf_maximum(m[0], m[1]);
  float m_other;
  m_other = tf_shuffle_xor<0xffffffffu>(m[0], 16, 32);
  m[0] = tf_maximum(m[0], m_other);
  float m_other_1;
  m_other_1 = tf_shuffle_xor<0xffffffffu>(m[0], 8, 32);
  m[0] = tf_maximum(m[0], m_other_1);
  float m_other_2;
  m_other_2 = tf_shuffle_xor<0xffffffffu>(m[0], 4, 32);
  m[0] = tf_maximum(m[0], m_other_2);
  float m_other_3;
  m_other_3 = tf_shuffle_xor<0xffffffffu>(m[0], 2, 32);
  m[0] = tf_maximum(m[0], m_other_3);
  float m_other_4;
  m_other_4 = tf_shuffle_xor<0xffffffffu>(m[0], 1, 32);
  m[0] = tf_maximum(m[0], m_other_4);
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  if (lane_of_warp < 1) {
    m_shared[warp_1] = m[0];
  }
  __syncthreads();
  m[0] = m_shared[0];
  #pragma unroll
  for (int slot = 1; slot < 8; ++slot) {
    float m_other_5 = m_shared[slot];
    m[0] = tf_maximum(m[0], m_other_5);
  }
  if (thread < 8) {
    tf_cluster_send(m_blocks + rank, thread, m[0], tf_arrivals + 0);
  }
  tf_cluster_receive(tf_arrivals + 0, 0, 32);
  m[0] = m_blocks[0];
  #pragma unroll
  for (int slot_1 = 1; slot_1 < 8; ++slot_1) {
    float m_other_6 = m_blocks[slot_1];
    m[0] = tf_maximum(m[0], m_other_6);
  }
  // %s (reduce.sum): threads -> warp -> block -> cluster
  alignas(16) float s[2];
  #pragma unroll
  for (int v_2 = 0; v_2 < 2; ++v_2) {
    s[v_2] = 0.0f;
  }
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 8; ++chunk_2) {
    const int vector_2 = 256 * chunk_2 + 2048 * rank + thread;
    #pragma unroll
    for (int v_3 = 0; v_3 < 8; ++v_3) {
      float e = tf_narrow_exp((tf_float(x_v[8 * chunk_2 + v_3]) - m[0]));
      s[(v_3 & 1)] = (s[(v_3 & 1)] + e);
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
  const int warp_2 = (thread >> 5);
  const int lane_of_warp_1 = (thread & 31);
  if (lane_of_warp_1 < 1) {
    s_shared[warp_2] = s[0];
  }
  __syncthreads();
  s[0] = s_shared[0];
  #pragma unroll
  for (int slot_2 = 1; slot_2 < 8; ++slot_2) {
    float s_other_5 = s_shared[slot_2];
    s[0] = (s[0] + s_other_5);
  }
  if (thread < 8) {
    tf_cluster_send(s_blocks + rank, thread, s[0], tf_arrivals + 1);
  }
  tf_cluster_receive(tf_arrivals + 1, 0, 32);
  s[0] = s_blocks[0];
  #pragma unroll
  for (int slot_3 = 1; slot_3 < 8; ++slot_3) {
    float s_other_6 = s_blocks[slot_3];
    s[0] = (s[0] + s_other_6);
  }
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_3 = 0; chunk_3 < 8; ++chunk_3) {
    const int vector_3 = 256 * chunk_3 + 2048 * rank + thread;
    alignas(16) tf_f16 y_out[8];
    #pragma unroll
    for (int v_4 = 0; v_4 < 8; ++v_4) {
      float e_1 = tf_narrow_exp((tf_float(x_v[8 * chunk_3 + v_4]) - m[0]));
      tf_f16 y_1 = tf_f16(tf_narrow_div(e_1, s[0]));
      y_out[v_4] = y_1;
    }
    tf_vector_store<8>(y + 131072 * group_ + 8 * vector_3, y_out);
  }
}
