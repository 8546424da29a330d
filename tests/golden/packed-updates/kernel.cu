// packed_k_n_2_q_2: 30750 blocks of 128 threads, for sm_90a
// pack { 12 x { n_2 [GRID,GRID-CTA_128]; q_2 [GRID,GRID-CTA_128]; vector=4; steps=1; unrolled=true; cta_num=8192; cta_size=128; } };
// reads 188927292 bytes, writes 125951496 bytes
// group 0, 12 members: nodes: %n_2, %q_2
extern "C" __global__ void __launch_bounds__(128)
packed_k_n_2_q_2(
    const __grid_constant__ packed_k_n_2_q_2_operands tf_operands) {
  const int thread = threadIdx.x;
  tf_wait_for_earlier_kernel();
  {
    const int tf_place = (int)blockIdx.x;
    const int tf_member = tf_member_of<12>(tf_first_0, tf_place);
    const int block = tf_place - tf_first_0[tf_member];
    const int num_vectors = tf_num_vectors_0[tf_member];
    const int num_rest = tf_num_rest_0[tf_member];
    const float* __restrict__ const m_2 = static_cast<const float*>(tf_operands.at[tf_member * 6]);
    const float* __restrict__ const g_2 = static_cast<const float*>(tf_operands.at[1 + tf_member * 6]);
    const float* __restrict__ const p_2 = static_cast<const float*>(tf_operands.at[2 + tf_member * 6]);
    const float* __restrict__ const rate = static_cast<const float*>(tf_operands.at[3 + tf_member * 6]);
    float* __restrict__ const n_2 = static_cast<float*>(tf_operands.at[4 + tf_member * 6]);
    float* __restrict__ const q_2 = static_cast<float*>(tf_operands.at[5 + tf_member * 6]);
    float rate_at = rate[0];
    alignas(16) float m_2_v[4];
    alignas(16) float g_2_v[4];
    alignas(16) float p_2_v[4];
    const int item = 128 * block + thread;
    if (item < num_vectors) {
      tf_vector_load_stream<4>(m_2_v, m_2 + 4 * item);
      tf_vector_load_stream<4>(g_2_v, g_2 + 4 * item);
      tf_vector_load_stream<4>(p_2_v, p_2 + 4 * item);
    }
    const int item_1 = 128 * block + thread;
    if (item_1 < num_vectors) {
      alignas(16) float n_2_out[4];
      alignas(16) float q_2_out[4];
      #pragma unroll
      for (int v = 0; v < 4; ++v) {
        float n_2_1 = ((m_2_v[v] * 0.5f) + g_2_v[v]);
        float q_2_1 = (p_2_v[v] - (n_2_1 * rate_at));
        n_2_out[v] = n_2_1;
        q_2_out[v] = q_2_1;
      }
      tf_vector_store_stream<4>(n_2 + 4 * item_1, n_2_out);
      tf_vector_store_stream<4>(q_2 + 4 * item_1, q_2_out);
    }
    // elements that do not fill a vector
    const int item_2 = 128 * block + thread;
    if (item_2 - 1 * num_vectors >= 0 && item_2 < num_rest + num_vectors) {
      float m_2_at = tf_load_stream(&m_2[item_2 + 3 * num_vectors]);
      float g_2_at = tf_load_stream(&g_2[item_2 + 3 * num_vectors]);
      float p_2_at = tf_load_stream(&p_2[item_2 + 3 * num_vectors]);
      float n_2_2 = ((m_2_at * 0.5f) + g_2_at);
      float q_2_2 = (p_2_at - (n_2_2 * rate_at));
      tf_store_stream(&n_2[item_2 + 3 * num_vectors], n_2_2);
      tf_store_stream(&q_2[item_2 + 3 * num_vectors], q_2_2);
    }
  }
}
