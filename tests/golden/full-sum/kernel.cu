// k_s_at: 512 blocks of 256 threads, 96 bytes of shared memory, for sm_90a
// nodes: %s, %at
// schedule: s [GRID_512-CTA_256,CTA]; at [GRID_512-CTA_256,CTA]; vector=4; chunks=32; on_chip=false; lanes=4; batch=4; cta_num=512; cta_size=256;
// reads 67108864 bytes, writes 12 bytes
extern "C" __global__ void __launch_bounds__(256)
k_s_at(
    const float* __restrict__ x,
    float* __restrict__ s,
    long long* __restrict__ at,
    float* s_1_partial,
    float* at_1_partial,
    int* at_at_partial,
    int* arrived) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const s_1_shared = reinterpret_cast<float*>(tf_shared);
  float* const at_1_shared = reinterpret_cast<float*>(tf_shared + 32);
  int* const at_at_shared = reinterpret_cast<int*>(tf_shared + 64);
  tf_wait_for_earlier_kernel();
  // %s (reduce.sum), %at (reduce.argmax): threads -> warp -> block
  alignas(16) float s_1[4];
  #pragma unroll
  for (int v = 0; v < 4; ++v) {
    s_1[v] = 0.0f;
  }
  alignas(16) float at_1[4];
  #pragma unroll
  for (int v_1 = 0; v_1 < 4; ++v_1) {
    at_1[v_1] = (-tf_inf_f32());
  }
  alignas(16) int at_at[4];
  #pragma unroll
  for (int v_2 = 0; v_2 < 4; ++v_2) {
    at_at[v_2] = 2147483647;
  }
  for (int chunk = 0; chunk < 8; ++chunk) {
    alignas(16) float x_v[16];
    #pragma unroll
    for (int inner = 0; inner < 4; ++inner) {
      const int vector = 8192 * block + 1024 * chunk + 256 * inner + thread;
      tf_vector_load_stream<4>(x_v + 4 * inner, x + 4 * vector);
    }
    #pragma unroll
    for (int inner_1 = 0; inner_1 < 4; ++inner_1) {
      const int vector_1 = 8192 * block + 1024 * chunk + 256 * inner_1 + thread;
      #pragma unroll
      for (int v_3 = 0; v_3 < 4; ++v_3) {
        s_1[v_3] = (s_1[v_3] + x_v[4 * inner_1 + v_3]);
        bool take = bool((at_at[v_3] == 2147483647) | bool((!(x_v[4 * inner_1 + v_3] <= at_1[v_3])) & (!tf_isnan(at_1[v_3]))));
        at_1[v_3] = (take ? x_v[4 * inner_1 + v_3] : at_1[v_3]);
        at_at[v_3] = (take ? (int)(long long)(v_3 + 4 * vector_1) : at_at[v_3]);
      }
    }
  }
  s_1[0] = (s_1[0] + s_1[1]);
  s_1[2] = (s_1[2] + s_1[3]);
  s_1[0] = (s_1[0] + s_1[2]);
  float next = (bool(bool((at_1[1] > at_1[0]) | bool(tf_isnan(at_1[1]) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1[1]) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1[1]))) & (at_at[1] < at_at[0]))) ? at_1[1] : at_1[0]);
  int next_1 = (bool(bool((at_1[1] > at_1[0]) | bool(tf_isnan(at_1[1]) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1[1]) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1[1]))) & (at_at[1] < at_at[0]))) ? at_at[1] : at_at[0]);
  at_1[0] = next;
  at_at[0] = next_1;
  float next_2 = (bool(bool((at_1[3] > at_1[2]) | bool(tf_isnan(at_1[3]) & (!tf_isnan(at_1[2])))) | bool(bool((at_1[2] == at_1[3]) | bool(tf_isnan(at_1[2]) & tf_isnan(at_1[3]))) & (at_at[3] < at_at[2]))) ? at_1[3] : at_1[2]);
  int next_3 = (bool(bool((at_1[3] > at_1[2]) | bool(tf_isnan(at_1[3]) & (!tf_isnan(at_1[2])))) | bool(bool((at_1[2] == at_1[3]) | bool(tf_isnan(at_1[2]) & tf_isnan(at_1[3]))) & (at_at[3] < at_at[2]))) ? at_at[3] : at_at[2]);
  at_1[2] = next_2;
  at_at[2] = next_3;
  float next_4 = (bool(bool((at_1[2] > at_1[0]) | bool(tf_isnan(at_1[2]) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1[2]) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1[2]))) & (at_at[2] < at_at[0]))) ? at_1[2] : at_1[0]);
  int next_5 = (bool(bool((at_1[2] > at_1[0]) | bool(tf_isnan(at_1[2]) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1[2]) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1[2]))) & (at_at[2] < at_at[0]))) ? at_at[2] : at_at[0]);
  at_1[0] = next_4;
  at_at[0] = next_5;
  float s_1_other;
  s_1_other = tf_shuffle_xor<0xffffffffu>(s_1[0], 16, 32);
  s_1[0] = (s_1[0] + s_1_other);
  float s_1_other_1;
  s_1_other_1 = tf_shuffle_xor<0xffffffffu>(s_1[0], 8, 32);
  s_1[0] = (s_1[0] + s_1_other_1);
  float s_1_other_2;
  s_1_other_2 = tf_shuffle_xor<0xffffffffu>(s_1[0], 4, 32);
  s_1[0] = (s_1[0] + s_1_other_2);
  float s_1_other_3;
  s_1_other_3 = tf_shuffle_xor<0xffffffffu>(s_1[0], 2, 32);
  s_1[0] = (s_1[0] + s_1_other_3);
  float s_1_other_4;
  s_1_other_4 = tf_shuffle_xor<0xffffffffu>(s_1[0], 1, 32);
  s_1[0] = (s_1[0] + s_1_other_4);
  float at_1_other;
  at_1_other = tf_shuffle_xor<0xffffffffu>(at_1[0], 16, 32);
  int at_at_other;
  at_at_other = tf_shuffle_xor<0xffffffffu>(at_at[0], 16, 32);
  float next_6 = (bool(bool((at_1_other > at_1[0]) | bool(tf_isnan(at_1_other) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other))) & (at_at_other < at_at[0]))) ? at_1_other : at_1[0]);
  int next_7 = (bool(bool((at_1_other > at_1[0]) | bool(tf_isnan(at_1_other) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other))) & (at_at_other < at_at[0]))) ? at_at_other : at_at[0]);
  at_1[0] = next_6;
  at_at[0] = next_7;
  float at_1_other_1;
  at_1_other_1 = tf_shuffle_xor<0xffffffffu>(at_1[0], 8, 32);
  int at_at_other_1;
  at_at_other_1 = tf_shuffle_xor<0xffffffffu>(at_at[0], 8, 32);
  float next_8 = (bool(bool((at_1_other_1 > at_1[0]) | bool(tf_isnan(at_1_other_1) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_1) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_1))) & (at_at_other_1 < at_at[0]))) ? at_1_other_1 : at_1[0]);
  int next_9 = (bool(bool((at_1_other_1 > at_1[0]) | bool(tf_isnan(at_1_other_1) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_1) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_1))) & (at_at_other_1 < at_at[0]))) ? at_at_other_1 : at_at[0]);
  at_1[0] = next_8;
  at_at[0] = next_9;
  float at_1_other_2;
  at_1_other_2 = tf_shuffle_xor<0xffffffffu>(at_1[0], 4, 32);
  int at_at_other_2;
  at_at_other_2 = tf_shuffle_xor<0xffffffffu>(at_at[0], 4, 32);
  float next_10 = (bool(bool((at_1_other_2 > at_1[0]) | bool(tf_isnan(at_1_other_2) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_2) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_2))) & (at_at_other_2 < at_at[0]))) ? at_1_other_2 : at_1[0]);
  int next_11 = (bool(bool((at_1_other_2 > at_1[0]) | bool(tf_isnan(at_1_other_2) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_2) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_2))) & (at_at_other_2 < at_at[0]))) ? at_at_other_2 : at_at[0]);
  at_1[0] = next_10;
  at_at[0] = next_11;
  float at_1_other_3;
  at_1_other_3 = tf_shuffle_xor<0xffffffffu>(at_1[0], 2, 32);
  int at_at_other_3;
  at_at_other_3 = tf_shuffle_xor<0xffffffffu>(at_at[0], 2, 32);
  float next_12 = (bool(bool((at_1_other_3 > at_1[0]) | bool(tf_isnan(at_1_other_3) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_3) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_3))) & (at_at_other_3 < at_at[0]))) ? at_1_other_3 : at_1[0]);
  int next_13 = (bool(bool((at_1_other_3 > at_1[0]) | bool(tf_isnan(at_1_other_3) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_3) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_3))) & (at_at_other_3 < at_at[0]))) ? at_at_other_3 : at_at[0]);
  at_1[0] = next_12;
  at_at[0] = next_13;
  float at_1_other_4;
  at_1_other_4 = tf_shuffle_xor<0xffffffffu>(at_1[0], 1, 32);
  int at_at_other_4;
  at_at_other_4 = tf_shuffle_xor<0xffffffffu>(at_at[0], 1, 32);
  float next_14 = (bool(bool((at_1_other_4 > at_1[0]) | bool(tf_isnan(at_1_other_4) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_4) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_4))) & (at_at_other_4 < at_at[0]))) ? at_1_other_4 : at_1[0]);
  int next_15 = (bool(bool((at_1_other_4 > at_1[0]) | bool(tf_isnan(at_1_other_4) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_4) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_4))) & (at_at_other_4 < at_at[0]))) ? at_at_other_4 : at_at[0]);
  at_1[0] = next_14;
  at_at[0] = next_15;
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  if (lane_of_warp < 1) {
    s_1_shared[warp_1] = s_1[0];
    at_1_shared[warp_1] = at_1[0];
    at_at_shared[warp_1] = at_at[0];
  }
  __syncthreads();
  s_1[0] = s_1_shared[0];
  #pragma unroll
  for (int slot = 1; slot < 8; ++slot) {
    float s_1_other_5 = s_1_shared[slot];
    s_1[0] = (s_1[0] + s_1_other_5);
  }
  at_1[0] = at_1_shared[0];
  at_at[0] = at_at_shared[0];
  #pragma unroll
  for (int slot_1 = 1; slot_1 < 8; ++slot_1) {
    float at_1_other_5 = at_1_shared[slot_1];
    int at_at_other_5 = at_at_shared[slot_1];
    float next_16 = (bool(bool((at_1_other_5 > at_1[0]) | bool(tf_isnan(at_1_other_5) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_5) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_5))) & (at_at_other_5 < at_at[0]))) ? at_1_other_5 : at_1[0]);
    int next_17 = (bool(bool((at_1_other_5 > at_1[0]) | bool(tf_isnan(at_1_other_5) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_5) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_5))) & (at_at_other_5 < at_at[0]))) ? at_at_other_5 : at_at[0]);
    at_1[0] = next_16;
    at_at[0] = next_17;
  }
  if (thread < 1) {
    s_1_partial[block] = s_1[0];
    at_1_partial[block] = at_1[0];
    at_at_partial[block] = at_at[0];
  }
  bool is_last;
  is_last = tf_last_block(arrived, 512);
  if (is_last) {
    s_1[0] = 0.0f;
    for (int round_ = 0; round_ < 2; ++round_) {
      float s_1_other_6 = s_1_partial[256 * round_ + thread];
      s_1[0] = (s_1[0] + s_1_other_6);
    }
    at_1[0] = (-tf_inf_f32());
    at_at[0] = 2147483647;
    for (int round_1 = 0; round_1 < 2; ++round_1) {
      float at_1_other_6 = at_1_partial[256 * round_1 + thread];
      int at_at_other_6 = at_at_partial[256 * round_1 + thread];
      float next_18 = (bool(bool((at_1_other_6 > at_1[0]) | bool(tf_isnan(at_1_other_6) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_6) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_6))) & (at_at_other_6 < at_at[0]))) ? at_1_other_6 : at_1[0]);
      int next_19 = (bool(bool((at_1_other_6 > at_1[0]) | bool(tf_isnan(at_1_other_6) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_6) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_6))) & (at_at_other_6 < at_at[0]))) ? at_at_other_6 : at_at[0]);
      at_1[0] = next_18;
      at_at[0] = next_19;
    }
    float s_1_other_7;
    s_1_other_7 = tf_shuffle_xor<0xffffffffu>(s_1[0], 16, 32);
    s_1[0] = (s_1[0] + s_1_other_7);
    float s_1_other_8;
    s_1_other_8 = tf_shuffle_xor<0xffffffffu>(s_1[0], 8, 32);
    s_1[0] = (s_1[0] + s_1_other_8);
    float s_1_other_9;
    s_1_other_9 = tf_shuffle_xor<0xffffffffu>(s_1[0], 4, 32);
    s_1[0] = (s_1[0] + s_1_other_9);
    float s_1_other_10;
    s_1_other_10 = tf_shuffle_xor<0xffffffffu>(s_1[0], 2, 32);
    s_1[0] = (s_1[0] + s_1_other_10);
    float s_1_other_11;
    s_1_other_11 = tf_shuffle_xor<0xffffffffu>(s_1[0], 1, 32);
    s_1[0] = (s_1[0] + s_1_other_11);
    float at_1_other_7;
    at_1_other_7 = tf_shuffle_xor<0xffffffffu>(at_1[0], 16, 32);
    int at_at_other_7;
    at_at_other_7 = tf_shuffle_xor<0xffffffffu>(at_at[0], 16, 32);
    float next_20 = (bool(bool((at_1_other_7 > at_1[0]) | bool(tf_isnan(at_1_other_7) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_7) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_7))) & (at_at_other_7 < at_at[0]))) ? at_1_other_7 : at_1[0]);
    int next_21 = (bool(bool((at_1_other_7 > at_1[0]) | bool(tf_isnan(at_1_other_7) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_7) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_7))) & (at_at_other_7 < at_at[0]))) ? at_at_other_7 : at_at[0]);
    at_1[0] = next_20;
    at_at[0] = next_21;
    float at_1_other_8;
    at_1_other_8 = tf_shuffle_xor<0xffffffffu>(at_1[0], 8, 32);
    int at_at_other_8;
    at_at_other_8 = tf_shuffle_xor<0xffffffffu>(at_at[0], 8, 32);
    float next_22 = (bool(bool((at_1_other_8 > at_1[0]) | bool(tf_isnan(at_1_other_8) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_8) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_8))) & (at_at_other_8 < at_at[0]))) ? at_1_other_8 : at_1[0]);
    int next_23 = (bool(bool((at_1_other_8 > at_1[0]) | bool(tf_isnan(at_1_other_8) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_8) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_8))) & (at_at_other_8 < at_at[0]))) ? at_at_other_8 : at_at[0]);
    at_1[0] = next_22;
    at_at[0] = next_23;
    float at_1_other_9;
    at_1_other_9 = tf_shuffle_xor<0xffffffffu>(at_1[0], 4, 32);
    int at_at_other_9;
    at_at_other_9 = tf_shuffle_xor<0xffffffffu>(at_at[0], 4, 32);
    float next_24 = (bool(bool((at_1_other_9 > at_1[0]) | bool(tf_isnan(at_1_other_9) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_9) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_9))) & (at_at_other_9 < at_at[0]))) ? at_1_other_9 : at_1[0]);
    int next_25 = (bool(bool((at_1_other_9 > at_1[0]) | bool(tf_isnan(at_1_other_9) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_9) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_9))) & (at_at_other_9 < at_at[0]))) ? at_at_other_9 : at_at[0]);
    at_1[0] = next_24;
    at_at[0] = next_25;
    float at_1_other_10;
    at_1_other_10 = tf_shuffle_xor<0xffffffffu>(at_1[0], 2, 32);
    int at_at_other_10;
    at_at_other_10 = tf_shuffle_xor<0xffffffffu>(at_at[0], 2, 32);
    float next_26 = (bool(bool((at_1_other_10 > at_1[0]) | bool(tf_isnan(at_1_other_10) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_10) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_10))) & (at_at_other_10 < at_at[0]))) ? at_1_other_10 : at_1[0]);
    int next_27 = (bool(bool((at_1_other_10 > at_1[0]) | bool(tf_isnan(at_1_other_10) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_10) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_10))) & (at_at_other_10 < at_at[0]))) ? at_at_other_10 : at_at[0]);
    at_1[0] = next_26;
    at_at[0] = next_27;
    float at_1_other_11;
    at_1_other_11 = tf_shuffle_xor<0xffffffffu>(at_1[0], 1, 32);
    int at_at_other_11;
    at_at_other_11 = tf_shuffle_xor<0xffffffffu>(at_at[0], 1, 32);
    float next_28 = (bool(bool((at_1_other_11 > at_1[0]) | bool(tf_isnan(at_1_other_11) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_11) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_11))) & (at_at_other_11 < at_at[0]))) ? at_1_other_11 : at_1[0]);
    int next_29 = (bool(bool((at_1_other_11 > at_1[0]) | bool(tf_isnan(at_1_other_11) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_11) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_11))) & (at_at_other_11 < at_at[0]))) ? at_at_other_11 : at_at[0]);
    at_1[0] = next_28;
    at_at[0] = next_29;
    const int warp_2 = (thread >> 5);
    const int lane_of_warp_1 = (thread & 31);
    if (lane_of_warp_1 < 1) {
      s_1_shared[warp_2] = s_1[0];
      at_1_shared[warp_2] = at_1[0];
      at_at_shared[warp_2] = at_at[0];
    }
    __syncthreads();
    s_1[0] = s_1_shared[0];
    #pragma unroll
    for (int slot_2 = 1; slot_2 < 8; ++slot_2) {
      float s_1_other_12 = s_1_shared[slot_2];
      s_1[0] = (s_1[0] + s_1_other_12);
    }
    at_1[0] = at_1_shared[0];
    at_at[0] = at_at_shared[0];
    #pragma unroll
    for (int slot_3 = 1; slot_3 < 8; ++slot_3) {
      float at_1_other_12 = at_1_shared[slot_3];
      int at_at_other_12 = at_at_shared[slot_3];
      float next_30 = (bool(bool((at_1_other_12 > at_1[0]) | bool(tf_isnan(at_1_other_12) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_12) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_12))) & (at_at_other_12 < at_at[0]))) ? at_1_other_12 : at_1[0]);
      int next_31 = (bool(bool((at_1_other_12 > at_1[0]) | bool(tf_isnan(at_1_other_12) & (!tf_isnan(at_1[0])))) | bool(bool((at_1[0] == at_1_other_12) | bool(tf_isnan(at_1[0]) & tf_isnan(at_1_other_12))) & (at_at_other_12 < at_at[0]))) ? at_at_other_12 : at_at[0]);
      at_1[0] = next_30;
      at_at[0] = next_31;
    }
    // %s, %at: one value a row
    if (thread < 1) {
      s[0] = s_1[0];
      at[0] = (long long)at_at[0];
    }
  }
}
