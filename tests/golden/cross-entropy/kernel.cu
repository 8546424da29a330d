// k_lse_loss: 4096 blocks of 256 threads, 64 bytes of shared memory, for sm_90a
// nodes: %m, %s, %lse, %loss
// schedule: m [GRID,CTA_256]S; lse [GRID]; loss [GRID]; vector=8; chunks=25; on_chip=false; lanes=4; cta_num=4096; cta_size=256;
// reads 412123136 bytes, writes 32768 bytes
extern "C" __global__ void __launch_bounds__(256)
k_lse_loss(
    const tf_bf16* __restrict__ x,
    const long long* __restrict__ ids,
    float* __restrict__ lse,
    float* __restrict__ loss) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const m_shared = reinterpret_cast<float*>(tf_shared);
  float* const m_exp_sum_shared = reinterpret_cast<float*>(tf_shared + 32);
  tf_wait_for_earlier_kernel();
  // %ids: what the row's results need besides
  long long ids_at = 0ll;
  if (thread < 1) {
    ids_at = ids[block];
  }
  // %m (reduce.expsum): threads -> warp -> block
  float m = (-tf_inf_f32());
  float m_exp_sum = 0.0f;
  for (int chunk = 0; chunk < 25; ++chunk) {
    const int vector = 256 * chunk + thread;
    if (vector < 6288) {
      alignas(16) tf_bf16 x_v[8];
      tf_vector_load_stream<8>(x_v, x + 50304 * block + 8 * vector);
      alignas(16) float m_x[8];
      #pragma unroll
      for (int v = 0; v < 8; ++v) {
        m_x[v] = tf_float(x_v[v]);
      }
      float m_top = m;
      #pragma unroll
      for (int v_1 = 0; v_1 < 8; ++v_1) {
        m_top = tf_maximum(m_top, m_x[v_1]);
      }
      float shift = ((m_top == (-tf_inf_f32())) ? 0.0f : m_top);
      m_exp_sum = (m_exp_sum * tf_narrow_exp((m - shift)));
      m = m_top;
      #pragma unroll
      for (int v_2 = 0; v_2 < 8; ++v_2) {
        m_exp_sum = (m_exp_sum + tf_narrow_exp((m_x[v_2] - shift)));
      }
    }
  }
  float m_own = m;
  float m_other;
  m_other = tf_shuffle_xor<0xffffffffu>(m, 16, 32);
  m = tf_maximum(m, m_other);
  float m_other_1;
  m_other_1 = tf_shuffle_xor<0xffffffffu>(m, 8, 32);
  m = tf_maximum(m, m_other_1);
  float m_other_2;
  m_other_2 = tf_shuffle_xor<0xffffffffu>(m, 4, 32);
  m = tf_maximum(m, m_other_2);
  float m_other_3;
  m_other_3 = tf_shuffle_xor<0xffffffffu>(m, 2, 32);
  m = tf_maximum(m, m_other_3);
  float m_other_4;
  m_other_4 = tf_shuffle_xor<0xffffffffu>(m, 1, 32);
  m = tf_maximum(m, m_other_4);
  float shift_1 = ((m == (-tf_inf_f32())) ? 0.0f : m);
  m_exp_sum = (m_exp_sum * tf_narrow_exp((m_own - shift_1)));
  float m_exp_sum_other;
  m_exp_sum_other = tf_shuffle_xor<0xffffffffu>(m_exp_sum, 16, 32);
  m_exp_sum = (m_exp_sum + m_exp_sum_other);
  float m_exp_sum_other_1;
  m_exp_sum_other_1 = tf_shuffle_xor<0xffffffffu>(m_exp_sum, 8, 32);
  m_exp_sum = (m_exp_sum + m_exp_sum_other_1);
  float m_exp_sum_other_2;
  m_exp_sum_other_2 = tf_shuffle_xor<0xffffffffu>(m_exp_sum, 4, 32);
  m_exp_sum = (m_exp_sum + m_exp_sum_other_2);
  float m_exp_sum_other_3;
  m_exp_sum_other_3 = tf_shuffle_xor<0xffffffffu>(m_exp_sum, 2, 32);
  m_exp_sum = (m_exp_sum + m_exp_sum_other_3);
  float m_exp_sum_other_4;
  m_exp_sum_other_4 = tf_shuffle_xor<0xffffffffu>(m_exp_sum, 1, 32);
  m_exp_sum = (m_exp_sum + m_exp_sum_other_4);
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  if (lane_of_warp < 1) {
    m_shared[warp_1] = m;
    m_exp_sum_shared[warp_1] = m_exp_sum;
  }
  __syncthreads();
  m = m_shared[0];
  #pragma unroll
  for (int slot = 1; slot < 8; ++slot) {
    m = tf_maximum(m, m_shared[slot]);
  }
  float shift_2 = ((m == (-tf_inf_f32())) ? 0.0f : m);
  m_exp_sum = 0.0f;
  #pragma unroll
  for (int slot_1 = 0; slot_1 < 8; ++slot_1) {
    float m_other_5 = m_shared[slot_1];
    m_exp_sum = (m_exp_sum + (m_exp_sum_shared[slot_1] * tf_narrow_exp((m_other_5 - shift_2))));
  }
  float s = ((m == (-tf_inf_f32())) ? tf_nan_f32() : m_exp_sum);
  // %lse, %loss: one value a row
  if (thread < 1) {
    float lse_1 = (m + tf_narrow_log(s));
    tf_bf16 x_at = tf_load_stream(&x[50304 * block + (int)tf_minimum(tf_maximum(ids_at, 0ll), 50303ll)]);
    float loss_1 = (lse_1 - tf_float(x_at));
    lse[block] = lse_1;
    loss[block] = loss_1;
  }
}
