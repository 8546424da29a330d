// k_y: 2048 blocks of 128 threads, for sm_90a
// nodes: %e, %s, %y
// schedule: s [GRID-CTA_4,WARP_32]W; y [GRID-CTA_4,WARP_32]; vector=8; chunks=3; on_chip=true; lanes=2; cta_num=2048; cta_size=128;
// reads 12718592 bytes, writes 25165824 bytes
extern "C" __global__ void __launch_bounds__(128)
k_y(
    const tf_f16* __restrict__ t,
    const tf_f16* __restrict__ u,
    const long long* __restrict__ ids,
    const long long* __restrict__ kinds,
    float* __restrict__ y) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  tf_wait_for_earlier_kernel();
  const int place = (thread & 31);
  const int row_of_block = (thread >> 5);
  const int row = 4 * block + row_of_block;
  long long ids_at = ids[row];
  long long kinds_at = kinds[row];
  // %s (reduce.sum): threads -> warp -> block
  alignas(16) float s[2];
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    s[v] = 0.0f;
  }
  #pragma unroll
  for (int chunk = 0; chunk < 3; ++chunk) {
    const int vector = 32 * chunk + place;
    alignas(16) tf_f16 t_v[8];
    alignas(16) tf_f16 u_v[8];
    tf_vector_load_stream<8>(t_v, t + 8 * vector + (int)tf_minimum(tf_maximum(ids_at, 0ll), 30521ll) * 768);
    tf_vector_load<8>(u_v, u + 8 * vector + (int)tf_minimum(tf_maximum(kinds_at, 0ll), 2ll) * 768);
    #pragma unroll
    for (int v_1 = 0; v_1 < 8; ++v_1) {
      float e = (tf_float(t_v[v_1]) + tf_float(u_v[v_1]));
      s[(v_1 & 1)] = (s[(v_1 & 1)] + e);
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
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 3; ++chunk_1) {
    const int vector_1 = 32 * chunk_1 + place;
    alignas(16) tf_f16 t_v_1[8];
    alignas(16) tf_f16 u_v_1[8];
    tf_vector_load_stream<8>(t_v_1, t + 8 * vector_1 + (int)tf_minimum(tf_maximum(ids_at, 0ll), 30521ll) * 768);
    tf_vector_load<8>(u_v_1, u + 8 * vector_1 + (int)tf_minimum(tf_maximum(kinds_at, 0ll), 2ll) * 768);
    alignas(16) float y_out[8];
    #pragma unroll
    for (int v_2 = 0; v_2 < 8; ++v_2) {
      float e_1 = (tf_float(t_v_1[v_2]) + tf_float(u_v_1[v_2]));
      float y_1 = (e_1 - s[0]);
      y_out[v_2] = y_1;
    }
    tf_vector_store<8>(y + 768 * row + 8 * vector_1, y_out);
  }
}
