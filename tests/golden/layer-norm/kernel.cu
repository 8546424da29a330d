// k_y_mean: 4096 blocks of 128 threads, 32 bytes of shared memory, for sm_90a
// nodes: %s, %q, %mean, %rstd, %y
// schedule: s [GRID-CTA_2,CTA_64]S; q [GRID-CTA_2,CTA_64]S; mean [GRID-CTA_2]; rstd [GRID-CTA_2]; y [GRID-CTA_2,CTA_64]; vector=8; chunks=2; on_chip=true; lanes=2; resident=12; cta_num=4096; cta_size=128;
// reads 12585984 bytes, writes 12648448 bytes
extern "C" __global__ void __launch_bounds__(128, 12)
k_y_mean(
    const tf_f16* __restrict__ x,
    const tf_f16* __restrict__ w,
    const tf_f16* __restrict__ b,
    tf_f16* __restrict__ y,
    float* __restrict__ mean,
    float* __restrict__ rstd) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const s_shared = reinterpret_cast<float*>(tf_shared);
  float* const q_shared = reinterpret_cast<float*>(tf_shared + 16);
  tf_wait_for_earlier_kernel();
  const int place = (thread & 63);
  const int row_of_block = (thread >> 6);
  const int row = 2 * block + row_of_block;
  alignas(16) tf_f16 x_v[16];
  // %x: global memory -> registers
  #pragma unroll
  for (int chunk = 0; chunk < 2; ++chunk) {
    const int vector = 64 * chunk + place;
    if (vector < 96) {
      tf_vector_load_stream<8>(x_v + 8 * chunk, x + 768 * row + 8 * vector);
    }
  }
  alignas(16) tf_f16 w_v[16];
  alignas(16) tf_f16 b_v[16];
  // %w, %b: global memory -> registers
  #pragma unroll
  for (int chunk_1 = 0; chunk_1 < 2; ++chunk_1) {
    const int vector_1 = 64 * chunk_1 + place;
    if (vector_1 < 96) {
      tf_vector_load<8>(w_v + 8 * chunk_1, w + 8 * vector_1);
      tf_vector_load<8>(b_v + 8 * chunk_1, b + 8 * vector_1);
    }
  }
  // %s (reduce.sum): threads -> warp -> block
  alignas(16) float s[2];
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    s[v] = 0.0f;
  }
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 2; ++chunk_2) {
    const int vector_2 = 64 * chunk_2 + place;
    if (vector_2 < 96) {
      #pragma unroll
      for (int v_1 = 0; v_1 < 8; ++v_1) {
        float s_x = tf_float(x_v[8 * chunk_2 + v_1]);
        s[(v_1 & 1)] = (s[(v_1 & 1)] + s_x);
      }
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
  const int warp_1 = (place >> 5);
  const int lane_of_warp = (place & 31);
  if (lane_of_warp < 1) {
    s_shared[2 * row_of_block + warp_1] = s[0];
  }
  __syncthreads();
  s[0] = s_shared[2 * row_of_block];
  float s_other_5 = s_shared[2 * row_of_block + 1];
  s[0] = (s[0] + s_other_5);
  // %q (reduce.sum): threads -> warp -> block
  alignas(16) float q[2];
  #pragma unroll
  for (int v_2 = 0; v_2 < 2; ++v_2) {
    q[v_2] = 0.0f;
  }
  #pragma unroll
  for (int chunk_3 = 0; chunk_3 < 2; ++chunk_3) {
    const int vector_3 = 64 * chunk_3 + place;
    if (vector_3 < 96) {
      #pragma unroll
      for (int v_3 = 0; v_3 < 8; ++v_3) {
        float q_x = ((tf_float(x_v[8 * chunk_3 + v_3]) - (s[0] * 0.0013020834f)) * (tf_float(x_v[8 * chunk_3 + v_3]) - (s[0] * 0.0013020834f)));
        q[(v_3 & 1)] = (q[(v_3 & 1)] + q_x);
      }
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
  const int warp_2 = (place >> 5);
  const int lane_of_warp_1 = (place & 31);
  if (lane_of_warp_1 < 1) {
    q_shared[2 * row_of_block + warp_2] = q[0];
  }
  __syncthreads();
  q[0] = q_shared[2 * row_of_block];
  float q_other_5 = q_shared[2 * row_of_block + 1];
  q[0] = (q[0] + q_other_5);
  float rstd_1 = rsqrtf(((q[0] * 0.0013020834f) + 1e-05f));
  float mean_1 = (s[0] * 0.0013020834f);
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_4 = 0; chunk_4 < 2; ++chunk_4) {
    const int vector_4 = 64 * chunk_4 + place;
    if (vector_4 < 96) {
      alignas(16) tf_f16 y_out[8];
      #pragma unroll
      for (int v_4 = 0; v_4 < 8; ++v_4) {
        tf_f16 y_1 = tf_f16(((((tf_float(x_v[8 * chunk_4 + v_4]) - mean_1) * rstd_1) * tf_float(w_v[8 * chunk_4 + v_4])) + tf_float(b_v[8 * chunk_4 + v_4])));
        y_out[v_4] = y_1;
      }
      tf_vector_store<8>(y + 768 * row + 8 * vector_4, y_out);
    }
  }
  // %mean, %rstd: one value a row
  if (place < 1) {
    mean[row] = mean_1;
    rstd[row] = rstd_1;
  }
}
