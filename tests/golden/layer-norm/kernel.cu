// k_y_mean: 4096 blocks of 128 threads, 48 bytes of shared memory, for sm_90a
// nodes: %s, %q, %mean, %rstd, %y
// schedule: s [GRID-CTA_2,CTA_64]S; q [GRID-CTA_2,CTA_64]S; mean [GRID-CTA_2]; rstd [GRID-CTA_2]; y [GRID-CTA_2,CTA_64]; vector=8; chunks=2; on_chip=true; lanes=2; cta_num=4096; cta_size=128;
// reads 12585984 bytes, writes 12648448 bytes
extern "C" __global__ void __launch_bounds__(128)
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
  float* const s_count_shared = reinterpret_cast<float*>(tf_shared + 32);
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
  // %s (reduce.sum) and %q, squares about each vector's mean: threads -> warp -> block
  float s_origin = 0.0f;
  float s_count = 0.0f;
  alignas(16) float s_distances[2];
  #pragma unroll
  for (int v = 0; v < 2; ++v) {
    s_distances[v] = 0.0f;
  }
  alignas(16) float s_squares[2];
  #pragma unroll
  for (int v_1 = 0; v_1 < 2; ++v_1) {
    s_squares[v_1] = 0.0f;
  }
  #pragma unroll
  for (int chunk_2 = 0; chunk_2 < 2; ++chunk_2) {
    const int vector_2 = 64 * chunk_2 + place;
    if (vector_2 < 96) {
      s_count = (s_count + 8.0f);
      #pragma unroll
      for (int v_2 = 0; v_2 < 8; ++v_2) {
        float s_x = tf_float(x_v[8 * chunk_2 + v_2]);
        if (chunk_2 < 1 && v_2 < 1) {
          s_origin = ((tf_abs(s_x) < tf_inf_f32()) ? s_x : 0.0f);
        }
        float off = (s_x - s_origin);
        s_distances[(v_2 & 1)] = (s_distances[(v_2 & 1)] + off);
        s_squares[(v_2 & 1)] = (s_squares[(v_2 & 1)] + (off * off));
      }
    }
  }
  s_distances[0] = (s_distances[0] + s_distances[1]);
  s_squares[0] = (s_squares[0] + s_squares[1]);
  float s_row = (s_distances[0] + (s_origin * s_count));
  float s_row_squares = tf_maximum((s_squares[0] - (s_distances[0] * (s_distances[0] * tf_narrow_div(1.0f, tf_maximum(s_count, 1.0f))))), 0.0f);
  float mean_of_share = (s_row * tf_narrow_div(1.0f, tf_maximum(s_count, 1.0f)));
  float count_of_share = s_count;
  float s_row_other;
  s_row_other = tf_shuffle_xor<0xffffffffu>(s_row, 16, 32);
  float s_count_other;
  s_count_other = tf_shuffle_xor<0xffffffffu>(s_count, 16, 32);
  s_row = (s_row + s_row_other);
  s_count = (s_count + s_count_other);
  float s_row_other_1;
  s_row_other_1 = tf_shuffle_xor<0xffffffffu>(s_row, 8, 32);
  float s_count_other_1;
  s_count_other_1 = tf_shuffle_xor<0xffffffffu>(s_count, 8, 32);
  s_row = (s_row + s_row_other_1);
  s_count = (s_count + s_count_other_1);
  float s_row_other_2;
  s_row_other_2 = tf_shuffle_xor<0xffffffffu>(s_row, 4, 32);
  float s_count_other_2;
  s_count_other_2 = tf_shuffle_xor<0xffffffffu>(s_count, 4, 32);
  s_row = (s_row + s_row_other_2);
  s_count = (s_count + s_count_other_2);
  float s_row_other_3;
  s_row_other_3 = tf_shuffle_xor<0xffffffffu>(s_row, 2, 32);
  float s_count_other_3;
  s_count_other_3 = tf_shuffle_xor<0xffffffffu>(s_count, 2, 32);
  s_row = (s_row + s_row_other_3);
  s_count = (s_count + s_count_other_3);
  float s_row_other_4;
  s_row_other_4 = tf_shuffle_xor<0xffffffffu>(s_row, 1, 32);
  float s_count_other_4;
  s_count_other_4 = tf_shuffle_xor<0xffffffffu>(s_count, 1, 32);
  s_row = (s_row + s_row_other_4);
  s_count = (s_count + s_count_other_4);
  float mean_of_shares = (s_row * tf_narrow_div(1.0f, tf_maximum(s_count, 1.0f)));
  float apart = (mean_of_share - mean_of_shares);
  s_row_squares = (s_row_squares + (count_of_share * (apart * apart)));
  float s_row_squares_other;
  s_row_squares_other = tf_shuffle_xor<0xffffffffu>(s_row_squares, 16, 32);
  s_row_squares = (s_row_squares + s_row_squares_other);
  float s_row_squares_other_1;
  s_row_squares_other_1 = tf_shuffle_xor<0xffffffffu>(s_row_squares, 8, 32);
  s_row_squares = (s_row_squares + s_row_squares_other_1);
  float s_row_squares_other_2;
  s_row_squares_other_2 = tf_shuffle_xor<0xffffffffu>(s_row_squares, 4, 32);
  s_row_squares = (s_row_squares + s_row_squares_other_2);
  float s_row_squares_other_3;
  s_row_squares_other_3 = tf_shuffle_xor<0xffffffffu>(s_row_squares, 2, 32);
  s_row_squares = (s_row_squares + s_row_squares_other_3);
  float s_row_squares_other_4;
  s_row_squares_other_4 = tf_shuffle_xor<0xffffffffu>(s_row_squares, 1, 32);
  s_row_squares = (s_row_squares + s_row_squares_other_4);
  const int warp_1 = (place >> 5);
  const int lane_of_warp = (place & 31);
  if (lane_of_warp < 1) {
    s_shared[2 * row_of_block + warp_1] = s_row;
    q_shared[2 * row_of_block + warp_1] = s_row_squares;
    s_count_shared[2 * row_of_block + warp_1] = s_count;
  }
  __syncthreads();
  const int lane_of_slot = (place & 1);
  s_row = 0.0f;
  s_row_squares = 0.0f;
  s_count = 0.0f;
  s_row = s_shared[lane_of_slot + 2 * row_of_block];
  s_row_squares = q_shared[lane_of_slot + 2 * row_of_block];
  s_count = s_count_shared[lane_of_slot + 2 * row_of_block];
  float mean_of_share_1 = (s_row * tf_narrow_div(1.0f, tf_maximum(s_count, 1.0f)));
  float count_of_share_1 = s_count;
  float s_row_other_5;
  s_row_other_5 = tf_shuffle_xor<0xffffffffu>(s_row, 1, 2);
  float s_count_other_5;
  s_count_other_5 = tf_shuffle_xor<0xffffffffu>(s_count, 1, 2);
  s_row = (s_row + s_row_other_5);
  s_count = (s_count + s_count_other_5);
  float mean_of_shares_1 = (s_row * tf_narrow_div(1.0f, tf_maximum(s_count, 1.0f)));
  float apart_1 = (mean_of_share_1 - mean_of_shares_1);
  s_row_squares = (s_row_squares + (count_of_share_1 * (apart_1 * apart_1)));
  float s_row_squares_other_5;
  s_row_squares_other_5 = tf_shuffle_xor<0xffffffffu>(s_row_squares, 1, 2);
  s_row_squares = (s_row_squares + s_row_squares_other_5);
  float rstd_1 = rsqrtf(((s_row_squares * 0.0013020834f) + 1e-05f));
  float mean_1 = (s_row * 0.0013020834f);
  // %y: registers -> global memory
  #pragma unroll
  for (int chunk_3 = 0; chunk_3 < 2; ++chunk_3) {
    const int vector_3 = 64 * chunk_3 + place;
    if (vector_3 < 96) {
      alignas(16) tf_f16 y_out[8];
      #pragma unroll
      for (int v_3 = 0; v_3 < 8; ++v_3) {
        tf_f16 y_1 = tf_f16(((((tf_float(x_v[8 * chunk_3 + v_3]) - mean_1) * rstd_1) * tf_float(w_v[8 * chunk_3 + v_3])) + tf_float(b_v[8 * chunk_3 + v_3])));
        y_out[v_3] = y_1;
      }
      tf_vector_store<8>(y + 768 * row + 8 * vector_3, y_out);
    }
  }
  // %mean, %rstd: one value a row
  if (place < 1) {
    mean[row] = mean_1;
    rstd[row] = rstd_1;
  }
}
