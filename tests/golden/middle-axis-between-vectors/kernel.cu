// k_y_a: 1088 blocks of 256 threads, 12288 bytes of shared memory, for sm_90a
// nodes: %s, %y, %a
// schedule: s [GRID,GRID-CTA_64,CTA_4]S; y [GRID,GRID-CTA_64]; a [GRID,GRID-CTA_64,CTA_4]; vector=4; chunks=128; on_chip=false; batch=8; resident=3; cta_num=1088; cta_size=256;
// reads 536756220 bytes, writes 3144960 bytes
extern "C" __global__ void __launch_bounds__(256, 3)
k_y_a(
    const float* __restrict__ x,
    const float* __restrict__ w,
    float* __restrict__ y,
    long long* __restrict__ a) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const s_sum_shared = reinterpret_cast<float*>(tf_shared);
  float* const a_part_shared = reinterpret_cast<float*>(tf_shared + 4096);
  int* const a_1_shared = reinterpret_cast<int*>(tf_shared + 8192);
  tf_wait_for_earlier_kernel();
  const int x_1 = (thread & 63);
  const int y_1 = (thread >> 6);
  // rows begin between vectors: a thread's rows all at the same distance from one
  const int image = tf_index_div(block, 17);
  const int tile = tf_index_rem(block, 17);
  const int first_vector = 524160 * image + ((4095 * y_1) >> 2);
  // %s (reduce.sum), %a (reduce.argmax): down the columns
  alignas(16) float s_sum[4];
  #pragma unroll
  for (int v = 0; v < 4; ++v) {
    s_sum[v] = 0.0f;
  }
  alignas(16) float a_part[4];
  #pragma unroll
  for (int v_1 = 0; v_1 < 4; ++v_1) {
    a_part[v_1] = (-tf_inf_f32());
  }
  alignas(16) int a_1[4];
  #pragma unroll
  for (int v_2 = 0; v_2 < 4; ++v_2) {
    a_1[v_2] = 2147483647;
  }
  alignas(16) float w_v[4];
  #pragma unroll
  for (int v_3 = 0; v_3 < 4; ++v_3) {
    w_v[v_3] = 0.0f;
    if (4 * first_vector - 2096640 * image + 252 * tile + v_3 + 4 * x_1 - 4095 * y_1 >= 0 && 4 * first_vector - 2096640 * image + 252 * tile + v_3 + 4 * x_1 - 4095 * y_1 < 4095) {
      tf_vector_load<1>(w_v + v_3, w + 4 * first_vector - 2096640 * image + 252 * tile + v_3 + 4 * x_1 - 4095 * y_1);
    }
  }
  for (int step = 0; step < 16; ++step) {
    alignas(16) float x_v[32];
    #pragma unroll
    for (int inner = 0; inner < 8; ++inner) {
      if (63 * tile + x_1 < 1025) {
        if (4 * first_vector + 16380 * inner + 131040 * step + 252 * tile + 4 * x_1 < 134184957) {
          tf_vector_load_stream<4>(x_v + 4 * inner, x + 4 * first_vector + 16380 * inner + 131040 * step + 252 * tile + 4 * x_1);
        } else {
          #pragma unroll
          for (int v_4 = 0; v_4 < 4; ++v_4) {
            x_v[4 * inner + v_4] = 0.0f;
            if (4 * first_vector - 2096640 * image + 252 * tile + v_4 + 4 * x_1 - 4095 * y_1 >= 0 && 4 * first_vector - 2096640 * image + 252 * tile + v_4 + 4 * x_1 - 4095 * y_1 < 4095) {
              tf_vector_load_stream<1>(x_v + 4 * inner + v_4, x + 4 * first_vector + 16380 * inner + 131040 * step + 252 * tile + v_4 + 4 * x_1);
            }
          }
        }
      }
    }
    #pragma unroll
    for (int inner_1 = 0; inner_1 < 8; ++inner_1) {
      if (63 * tile + x_1 < 1025) {
        #pragma unroll
        for (int v_5 = 0; v_5 < 4; ++v_5) {
          float s_x = (x_v[4 * inner_1 + v_5] * w_v[v_5]);
          s_sum[v_5] = (s_sum[v_5] + s_x);
          bool take = bool((a_1[v_5] == 2147483647) | bool((!(x_v[4 * inner_1 + v_5] <= a_part[v_5])) & (!tf_isnan(a_part[v_5]))));
          a_part[v_5] = (take ? x_v[4 * inner_1 + v_5] : a_part[v_5]);
          a_1[v_5] = (take ? (int)(long long)(4 * inner_1 + 32 * step + y_1) : a_1[v_5]);
        }
      }
    }
  }
  #pragma unroll
  for (int v_6 = 0; v_6 < 4; ++v_6) {
    s_sum_shared[64 * v_6 + x_1 + 256 * y_1] = s_sum[v_6];
    a_part_shared[64 * v_6 + x_1 + 256 * y_1] = a_part[v_6];
    a_1_shared[64 * v_6 + x_1 + 256 * y_1] = a_1[v_6];
  }
  __syncthreads();
  const int column = thread + 252 * tile;
  if (thread < 252 && column < 4095) {
    float s_column = 0.0f;
    float a_column = (-tf_inf_f32());
    int a_column_1 = 2147483647;
    float s_sum_o = s_sum_shared[64 * (thread & 3) + (thread >> 2)];
    s_column = (s_column + s_sum_o);
    float a_part_o = a_part_shared[64 * (thread & 3) + (thread >> 2)];
    int a_1_o = a_1_shared[64 * (thread & 3) + (thread >> 2)];
    float next = (bool(bool((a_part_o > a_column) | bool(tf_isnan(a_part_o) & (!tf_isnan(a_column)))) | bool(bool((a_column == a_part_o) | bool(tf_isnan(a_column) & tf_isnan(a_part_o))) & (a_1_o < a_column_1))) ? a_part_o : a_column);
    int next_1 = (bool(bool((a_part_o > a_column) | bool(tf_isnan(a_part_o) & (!tf_isnan(a_column)))) | bool(bool((a_column == a_part_o) | bool(tf_isnan(a_column) & tf_isnan(a_part_o))) & (a_1_o < a_column_1))) ? a_1_o : a_column_1);
    a_column = next;
    a_column_1 = next_1;
    const int place = thread + 3;
    float s_sum_o_1 = s_sum_shared[64 * (place & 3) + (place >> 2) + 256];
    s_column = (s_column + s_sum_o_1);
    float a_part_o_1 = a_part_shared[64 * (place & 3) + (place >> 2) + 256];
    int a_1_o_1 = a_1_shared[64 * (place & 3) + (place >> 2) + 256];
    float next_2 = (bool(bool((a_part_o_1 > a_column) | bool(tf_isnan(a_part_o_1) & (!tf_isnan(a_column)))) | bool(bool((a_column == a_part_o_1) | bool(tf_isnan(a_column) & tf_isnan(a_part_o_1))) & (a_1_o_1 < a_column_1))) ? a_part_o_1 : a_column);
    int next_3 = (bool(bool((a_part_o_1 > a_column) | bool(tf_isnan(a_part_o_1) & (!tf_isnan(a_column)))) | bool(bool((a_column == a_part_o_1) | bool(tf_isnan(a_column) & tf_isnan(a_part_o_1))) & (a_1_o_1 < a_column_1))) ? a_1_o_1 : a_column_1);
    a_column = next_2;
    a_column_1 = next_3;
    const int place_1 = thread + 2;
    float s_sum_o_2 = s_sum_shared[64 * (place_1 & 3) + (place_1 >> 2) + 512];
    s_column = (s_column + s_sum_o_2);
    float a_part_o_2 = a_part_shared[64 * (place_1 & 3) + (place_1 >> 2) + 512];
    int a_1_o_2 = a_1_shared[64 * (place_1 & 3) + (place_1 >> 2) + 512];
    float next_4 = (bool(bool((a_part_o_2 > a_column) | bool(tf_isnan(a_part_o_2) & (!tf_isnan(a_column)))) | bool(bool((a_column == a_part_o_2) | bool(tf_isnan(a_column) & tf_isnan(a_part_o_2))) & (a_1_o_2 < a_column_1))) ? a_part_o_2 : a_column);
    int next_5 = (bool(bool((a_part_o_2 > a_column) | bool(tf_isnan(a_part_o_2) & (!tf_isnan(a_column)))) | bool(bool((a_column == a_part_o_2) | bool(tf_isnan(a_column) & tf_isnan(a_part_o_2))) & (a_1_o_2 < a_column_1))) ? a_1_o_2 : a_column_1);
    a_column = next_4;
    a_column_1 = next_5;
    const int place_2 = thread + 1;
    float s_sum_o_3 = s_sum_shared[64 * (place_2 & 3) + (place_2 >> 2) + 768];
    s_column = (s_column + s_sum_o_3);
    float a_part_o_3 = a_part_shared[64 * (place_2 & 3) + (place_2 >> 2) + 768];
    int a_1_o_3 = a_1_shared[64 * (place_2 & 3) + (place_2 >> 2) + 768];
    float next_6 = (bool(bool((a_part_o_3 > a_column) | bool(tf_isnan(a_part_o_3) & (!tf_isnan(a_column)))) | bool(bool((a_column == a_part_o_3) | bool(tf_isnan(a_column) & tf_isnan(a_part_o_3))) & (a_1_o_3 < a_column_1))) ? a_part_o_3 : a_column);
    int next_7 = (bool(bool((a_part_o_3 > a_column) | bool(tf_isnan(a_part_o_3) & (!tf_isnan(a_column)))) | bool(bool((a_column == a_part_o_3) | bool(tf_isnan(a_column) & tf_isnan(a_part_o_3))) & (a_1_o_3 < a_column_1))) ? a_1_o_3 : a_column_1);
    a_column = next_6;
    a_column_1 = next_7;
    // %y, %a: one value a column
    long long a_2 = (long long)a_column_1;
    float y_2 = (s_column * 0.5f);
    y[column + 4095 * image] = y_2;
    a[column + 4095 * image] = a_2;
  }
}
