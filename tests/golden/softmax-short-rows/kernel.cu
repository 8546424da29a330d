// k_y: 4096 blocks of 128 threads, for sm_90a
// nodes: %m, %e, %s, %y
// schedule: m [GRID-CTA_16,WARP_8]W; s [GRID-CTA_16,WARP_8]W; y [GRID-CTA_16,WARP_8]; vector=8; chunks=2; on_chip=true; lanes=2; cta_num=4096; cta_size=128;
// reads 16777216 bytes, writes 16777216 bytes
extern "C" __global__ void __launch_bounds__(128)
k_y(
    const tf_f16* __restrict__ x,
    tf_f16* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  tf_wait_for_earlier_kernel();
  const int place = (thread & 7);
  const int row_of_block = (thread >> 3);
  const int row = 16 * block + row_of_block;
  alignas(16) tf_f16 x_v[16];
  // %x: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 2; ++chunk) {
    const int vector = 8 * chunk + place;
    tf_vector_load_stream<8>(x_v + 8 * chunk, x + 128 * row + 8 * vector);
  }
  // %m (reduce.max): threads -> warp -> block
  alignas(16) float m[2];
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    m[v] = (-tf_inf_f32());
  }
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 2; ++chunk_1) {
    const int vector_1 = 8 * chunk_1 + place;
    #pragma unroll
    for (int v_1 = 0; v_1 < 8; ++v_1) {
      float m_x = tf_float(x_v[8 * chunk_1 + v_1]);
      m[(v_1 & 1)] = tf_maximum(m[(v_1 & 1)], m_x);
    }
  }
  m[0] = tf_maximum(m[0], m[1]);
  float m_other;
  m_other = tf_shuffle_xor<0xffffffffu>(m[0], 4, 8);
  m[0] = tf_maximum(m[0], m_other);
  float m_other_1;
  m_other_1 = tf_shuffle_xor<0xffffffffu>(m[0], 2, 8);
  m[0] = tf_maximum(m[0], m_other_1);
  float m_other_2;
  m_other_2 = tf_shuffle_xor<0xffffffffu>(m[0], 1, 8);
  m[0] = tf_maximum(m[0], m_other_2);
  // %s (reduce.sum): threads -> warp -> block
  alignas(16) float s[2];
  #pragma unroll
  for (int v_2 = 0; v_2 < 2; ++v_2) {
    s[v_2] = 0.0f;
  }
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 2; ++chunk_2) {
    const int vector_2 = 8 * chunk_2 + place;
    #pragma unroll
    for (int v_3 = 0; v_3 < 8; ++v_3) {
      float e = tf_narrow_exp((tf_float(x_v[8 * chunk_2 + v_3]) - m[0]));
      s[(v_3 & 1)] = (s[(v_3 & 1)] + e);
    }
  }
  s[0] = (s[0] + s[1]);
  float s_other;
  s_other = tf_shuffle_xor<0xffffffffu>(s[0], 4, 8);
  s[0] = (s[0] + s_other);
  float s_other_1;
  s_other_1 = tf_shuffle_xor<0xffffffffu>(s[0], 2, 8);
  s[0] = (s[0] + s_other_1);
  float s_other_2;
  s_other_2 = tf_shuffle_xor<0xffffffffu>(s[0], 1, 8);
  s[0] = (s[0] + s_other_2);
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_3 = 0; chunk_3 < 2; ++chunk_3) {
    const int vector_3 = 8 * chunk_3 + place;
    alignas(16) tf_f16 y_out[8];
    #pragma unroll
    for (int v_4 = 0; v_4 < 8; ++v_4) {
      float e_1 = tf_narrow_exp((tf_float(x_v[8 * chunk_3 + v_4]) - m[0]));
      tf_f16 y_1 = tf_f16(tf_narrow_div(e_1, s[0]));
      y_out[v_4] = y_1;
    }
    tf_vector_store<8>(y + 128 * row + 8 * vector_3, y_out);
  }
}
