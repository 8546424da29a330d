// k_max_min: 2048 blocks of 256 threads, 192 bytes of shared memory, for sm_90a
// nodes: %max, %min, %argmax, %argmin
// schedule: max [GRID,CTA_256]; min [GRID,CTA_256]; argmax [GRID,CTA_256]; argmin [GRID,CTA_256]; vector=8; chunks=16; on_chip=false; lanes=4; batch=4; cta_num=2048; cta_size=256;
// reads 131072000 bytes, writes 49152 bytes
extern "C" __global__ void __launch_bounds__(256)
k_max_min(
    const tf_f16* __restrict__ x,
    float* __restrict__ max_,
    float* __restrict__ min_,
    long long* __restrict__ argmax,
    long long* __restrict__ argmin) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const max_1_shared = reinterpret_cast<float*>(tf_shared);
  float* const min_1_shared = reinterpret_cast<float*>(tf_shared + 32);
  float* const argmax_1_shared = reinterpret_cast<float*>(tf_shared + 64);
  int* const argmax_at_shared = reinterpret_cast<int*>(tf_shared + 96);
  float* const argmin_1_shared = reinterpret_cast<float*>(tf_shared + 128);
  int* const argmin_at_shared = reinterpret_cast<int*>(tf_shared + 160);
  tf_wait_for_earlier_kernel();
  // %max (reduce.max), %min (reduce.min), %argmax (reduce.argmax), %argmin (reduce.argmin): threads -> warp -> block
  alignas(16) float max_1[4];
  #pragma unroll
  for (int v = 0; v < 4; ++v) {
    max_1[v] = (-tf_inf_f32());
  }
  alignas(16) float min_1[4];
  #pragma unroll
  for (int v_1 = 0; v_1 < 4; ++v_1) {
    min_1[v_1] = tf_inf_f32();
  }
  alignas(16) float argmax_1[4];
  #pragma unroll
  for (int v_2 = 0; v_2 < 4; ++v_2) {
    argmax_1[v_2] = (-tf_inf_f32());
  }
  alignas(16) int argmax_at[4];
  #pragma unroll
  for (int v_3 = 0; v_3 < 4; ++v_3) {
    argmax_at[v_3] = 2147483647;
  }
  alignas(16) float argmin_1[4];
  #pragma unroll
  for (int v_4 = 0; v_4 < 4; ++v_4) {
    argmin_1[v_4] = tf_inf_f32();
  }
  alignas(16) int argmin_at[4];
  #pragma unroll
  for (int v_5 = 0; v_5 < 4; ++v_5) {
    argmin_at[v_5] = 2147483647;
  }
  for (int chunk = 0; chunk < 4; ++chunk) {
    alignas(16) tf_f16 x_v[32];
    #pragma unroll
    for (int inner = 0; inner < 4; ++inner) {
      const int vector = 1024 * chunk + 256 * inner + thread;
      if (vector < 4000) {
        tf_vector_load_stream<8>(x_v + 8 * inner, x + 32000 * block + 8 * vector);
      }
    }
    #pragma unroll
    for (int inner_1 = 0; inner_1 < 4; ++inner_1) {
      const int vector_1 = 1024 * chunk + 256 * inner_1 + thread;
      if (vector_1 < 4000) {
        #pragma unroll
        for (int v_6 = 0; v_6 < 8; ++v_6) {
          float max_x = tf_float(x_v[8 * inner_1 + v_6]);
          max_1[(v_6 & 3)] = tf_maximum(max_1[(v_6 & 3)], max_x);
          float min_x = tf_float(x_v[8 * inner_1 + v_6]);
          min_1[(v_6 & 3)] = tf_minimum(min_1[(v_6 & 3)], min_x);
          float argmax_x = tf_float(x_v[8 * inner_1 + v_6]);
          bool take = bool((argmax_at[(v_6 & 3)] == 2147483647) | bool((!(argmax_x <= argmax_1[(v_6 & 3)])) & (!tf_isnan(argmax_1[(v_6 & 3)]))));
          argmax_1[(v_6 & 3)] = (take ? argmax_x : argmax_1[(v_6 & 3)]);
          argmax_at[(v_6 & 3)] = (take ? (int)(long long)(v_6 + 8 * vector_1) : argmax_at[(v_6 & 3)]);
          float argmin_x = tf_float(x_v[8 * inner_1 + v_6]);
          bool take_1 = bool((argmin_at[(v_6 & 3)] == 2147483647) | bool((!(argmin_x >= argmin_1[(v_6 & 3)])) & (!tf_isnan(argmin_1[(v_6 & 3)]))));
          argmin_1[(v_6 & 3)] = (take_1 ? argmin_x : argmin_1[(v_6 & 3)]);
          argmin_at[(v_6 & 3)] = (take_1 ? (int)(long long)(v_6 + 8 * vector_1) : argmin_at[(v_6 & 3)]);
        }
      }
    }
  }
  max_1[0] = tf_maximum(max_1[0], max_1[1]);
  max_1[2] = tf_maximum(max_1[2], max_1[3]);
  max_1[0] = tf_maximum(max_1[0], max_1[2]);
  min_1[0] = tf_minimum(min_1[0], min_1[1]);
  min_1[2] = tf_minimum(min_1[2], min_1[3]);
  min_1[0] = tf_minimum(min_1[0], min_1[2]);
  float next = (bool(bool((argmax_1[1] > argmax_1[0]) | bool(tf_isnan(argmax_1[1]) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1[1]) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1[1]))) & (argmax_at[1] < argmax_at[0]))) ? argmax_1[1] : argmax_1[0]);
  int next_1 = (bool(bool((argmax_1[1] > argmax_1[0]) | bool(tf_isnan(argmax_1[1]) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1[1]) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1[1]))) & (argmax_at[1] < argmax_at[0]))) ? argmax_at[1] : argmax_at[0]);
  argmax_1[0] = next;
  argmax_at[0] = next_1;
  float next_2 = (bool(bool((argmax_1[3] > argmax_1[2]) | bool(tf_isnan(argmax_1[3]) & (!tf_isnan(argmax_1[2])))) | bool(bool((argmax_1[2] == argmax_1[3]) | bool(tf_isnan(argmax_1[2]) & tf_isnan(argmax_1[3]))) & (argmax_at[3] < argmax_at[2]))) ? argmax_1[3] : argmax_1[2]);
  int next_3 = (bool(bool((argmax_1[3] > argmax_1[2]) | bool(tf_isnan(argmax_1[3]) & (!tf_isnan(argmax_1[2])))) | bool(bool((argmax_1[2] == argmax_1[3]) | bool(tf_isnan(argmax_1[2]) & tf_isnan(argmax_1[3]))) & (argmax_at[3] < argmax_at[2]))) ? argmax_at[3] : argmax_at[2]);
  argmax_1[2] = next_2;
  argmax_at[2] = next_3;
  float next_4 = (bool(bool((argmax_1[2] > argmax_1[0]) | bool(tf_isnan(argmax_1[2]) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1[2]) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1[2]))) & (argmax_at[2] < argmax_at[0]))) ? argmax_1[2] : argmax_1[0]);
  int next_5 = (bool(bool((argmax_1[2] > argmax_1[0]) | bool(tf_isnan(argmax_1[2]) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1[2]) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1[2]))) & (argmax_at[2] < argmax_at[0]))) ? argmax_at[2] : argmax_at[0]);
  argmax_1[0] = next_4;
  argmax_at[0] = next_5;
  float next_6 = (bool(bool((argmin_1[1] < argmin_1[0]) | bool(tf_isnan(argmin_1[1]) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1[1]) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1[1]))) & (argmin_at[1] < argmin_at[0]))) ? argmin_1[1] : argmin_1[0]);
  int next_7 = (bool(bool((argmin_1[1] < argmin_1[0]) | bool(tf_isnan(argmin_1[1]) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1[1]) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1[1]))) & (argmin_at[1] < argmin_at[0]))) ? argmin_at[1] : argmin_at[0]);
  argmin_1[0] = next_6;
  argmin_at[0] = next_7;
  float next_8 = (bool(bool((argmin_1[3] < argmin_1[2]) | bool(tf_isnan(argmin_1[3]) & (!tf_isnan(argmin_1[2])))) | bool(bool((argmin_1[2] == argmin_1[3]) | bool(tf_isnan(argmin_1[2]) & tf_isnan(argmin_1[3]))) & (argmin_at[3] < argmin_at[2]))) ? argmin_1[3] : argmin_1[2]);
  int next_9 = (bool(bool((argmin_1[3] < argmin_1[2]) | bool(tf_isnan(argmin_1[3]) & (!tf_isnan(argmin_1[2])))) | bool(bool((argmin_1[2] == argmin_1[3]) | bool(tf_isnan(argmin_1[2]) & tf_isnan(argmin_1[3]))) & (argmin_at[3] < argmin_at[2]))) ? argmin_at[3] : argmin_at[2]);
  argmin_1[2] = next_8;
  argmin_at[2] = next_9;
  float next_10 = (bool(bool((argmin_1[2] < argmin_1[0]) | bool(tf_isnan(argmin_1[2]) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1[2]) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1[2]))) & (argmin_at[2] < argmin_at[0]))) ? argmin_1[2] : argmin_1[0]);
  int next_11 = (bool(bool((argmin_1[2] < argmin_1[0]) | bool(tf_isnan(argmin_1[2]) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1[2]) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1[2]))) & (argmin_at[2] < argmin_at[0]))) ? argmin_at[2] : argmin_at[0]);
  argmin_1[0] = next_10;
  argmin_at[0] = next_11;
  float max_1_other;
  max_1_other = tf_shuffle_xor<0xffffffffu>(max_1[0], 16, 32);
  max_1[0] = tf_maximum(max_1[0], max_1_other);
  float max_1_other_1;
  max_1_other_1 = tf_shuffle_xor<0xffffffffu>(max_1[0], 8, 32);
  max_1[0] = tf_maximum(max_1[0], max_1_other_1);
  float max_1_other_2;
  max_1_other_2 = tf_shuffle_xor<0xffffffffu>(max_1[0], 4, 32);
  max_1[0] = tf_maximum(max_1[0], max_1_other_2);
  float max_1_other_3;
  max_1_other_3 = tf_shuffle_xor<0xffffffffu>(max_1[0], 2, 32);
  max_1[0] = tf_maximum(max_1[0], max_1_other_3);
  float max_1_other_4;
  max_1_other_4 = tf_shuffle_xor<0xffffffffu>(max_1[0], 1, 32);
  max_1[0] = tf_maximum(max_1[0], max_1_other_4);
  float min_1_other;
  min_1_other = tf_shuffle_xor<0xffffffffu>(min_1[0], 16, 32);
  min_1[0] = tf_minimum(min_1[0], min_1_other);
  float min_1_other_1;
  min_1_other_1 = tf_shuffle_xor<0xffffffffu>(min_1[0], 8, 32);
  min_1[0] = tf_minimum(min_1[0], min_1_other_1);
  float min_1_other_2;
  min_1_other_2 = tf_shuffle_xor<0xffffffffu>(min_1[0], 4, 32);
  min_1[0] = tf_minimum(min_1[0], min_1_other_2);
  float min_1_other_3;
  min_1_other_3 = tf_shuffle_xor<0xffffffffu>(min_1[0], 2, 32);
  min_1[0] = tf_minimum(min_1[0], min_1_other_3);
  float min_1_other_4;
  min_1_other_4 = tf_shuffle_xor<0xffffffffu>(min_1[0], 1, 32);
  min_1[0] = tf_minimum(min_1[0], min_1_other_4);
  float argmax_1_other;
  argmax_1_other = tf_shuffle_xor<0xffffffffu>(argmax_1[0], 16, 32);
  int argmax_at_other;
  argmax_at_other = tf_shuffle_xor<0xffffffffu>(argmax_at[0], 16, 32);
  float next_12 = (bool(bool((argmax_1_other > argmax_1[0]) | bool(tf_isnan(argmax_1_other) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other))) & (argmax_at_other < argmax_at[0]))) ? argmax_1_other : argmax_1[0]);
  int next_13 = (bool(bool((argmax_1_other > argmax_1[0]) | bool(tf_isnan(argmax_1_other) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other))) & (argmax_at_other < argmax_at[0]))) ? argmax_at_other : argmax_at[0]);
  argmax_1[0] = next_12;
  argmax_at[0] = next_13;
  float argmax_1_other_1;
  argmax_1_other_1 = tf_shuffle_xor<0xffffffffu>(argmax_1[0], 8, 32);
  int argmax_at_other_1;
  argmax_at_other_1 = tf_shuffle_xor<0xffffffffu>(argmax_at[0], 8, 32);
  float next_14 = (bool(bool((argmax_1_other_1 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_1) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_1) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_1))) & (argmax_at_other_1 < argmax_at[0]))) ? argmax_1_other_1 : argmax_1[0]);
  int next_15 = (bool(bool((argmax_1_other_1 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_1) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_1) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_1))) & (argmax_at_other_1 < argmax_at[0]))) ? argmax_at_other_1 : argmax_at[0]);
  argmax_1[0] = next_14;
  argmax_at[0] = next_15;
  float argmax_1_other_2;
  argmax_1_other_2 = tf_shuffle_xor<0xffffffffu>(argmax_1[0], 4, 32);
  int argmax_at_other_2;
  argmax_at_other_2 = tf_shuffle_xor<0xffffffffu>(argmax_at[0], 4, 32);
  float next_16 = (bool(bool((argmax_1_other_2 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_2) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_2) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_2))) & (argmax_at_other_2 < argmax_at[0]))) ? argmax_1_other_2 : argmax_1[0]);
  int next_17 = (bool(bool((argmax_1_other_2 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_2) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_2) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_2))) & (argmax_at_other_2 < argmax_at[0]))) ? argmax_at_other_2 : argmax_at[0]);
  argmax_1[0] = next_16;
  argmax_at[0] = next_17;
  float argmax_1_other_3;
  argmax_1_other_3 = tf_shuffle_xor<0xffffffffu>(argmax_1[0], 2, 32);
  int argmax_at_other_3;
  argmax_at_other_3 = tf_shuffle_xor<0xffffffffu>(argmax_at[0], 2, 32);
  float next_18 = (bool(bool((argmax_1_other_3 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_3) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_3) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_3))) & (argmax_at_other_3 < argmax_at[0]))) ? argmax_1_other_3 : argmax_1[0]);
  int next_19 = (bool(bool((argmax_1_other_3 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_3) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_3) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_3))) & (argmax_at_other_3 < argmax_at[0]))) ? argmax_at_other_3 : argmax_at[0]);
  argmax_1[0] = next_18;
  argmax_at[0] = next_19;
  float argmax_1_other_4;
  argmax_1_other_4 = tf_shuffle_xor<0xffffffffu>(argmax_1[0], 1, 32);
  int argmax_at_other_4;
  argmax_at_other_4 = tf_shuffle_xor<0xffffffffu>(argmax_at[0], 1, 32);
  float next_20 = (bool(bool((argmax_1_other_4 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_4) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_4) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_4))) & (argmax_at_other_4 < argmax_at[0]))) ? argmax_1_other_4 : argmax_1[0]);
  int next_21 = (bool(bool((argmax_1_other_4 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_4) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_4) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_4))) & (argmax_at_other_4 < argmax_at[0]))) ? argmax_at_other_4 : argmax_at[0]);
  argmax_1[0] = next_20;
  argmax_at[0] = next_21;
  float argmin_1_other;
  argmin_1_other = tf_shuffle_xor<0xffffffffu>(argmin_1[0], 16, 32);
  int argmin_at_other;
  argmin_at_other = tf_shuffle_xor<0xffffffffu>(argmin_at[0], 16, 32);
  float next_22 = (bool(bool((argmin_1_other < argmin_1[0]) | bool(tf_isnan(argmin_1_other) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other))) & (argmin_at_other < argmin_at[0]))) ? argmin_1_other : argmin_1[0]);
  int next_23 = (bool(bool((argmin_1_other < argmin_1[0]) | bool(tf_isnan(argmin_1_other) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other))) & (argmin_at_other < argmin_at[0]))) ? argmin_at_other : argmin_at[0]);
  argmin_1[0] = next_22;
  argmin_at[0] = next_23;
  float argmin_1_other_1;
  argmin_1_other_1 = tf_shuffle_xor<0xffffffffu>(argmin_1[0], 8, 32);
  int argmin_at_other_1;
  argmin_at_other_1 = tf_shuffle_xor<0xffffffffu>(argmin_at[0], 8, 32);
  float next_24 = (bool(bool((argmin_1_other_1 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_1) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_1) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_1))) & (argmin_at_other_1 < argmin_at[0]))) ? argmin_1_other_1 : argmin_1[0]);
  int next_25 = (bool(bool((argmin_1_other_1 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_1) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_1) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_1))) & (argmin_at_other_1 < argmin_at[0]))) ? argmin_at_other_1 : argmin_at[0]);
  argmin_1[0] = next_24;
  argmin_at[0] = next_25;
  float argmin_1_other_2;
  argmin_1_other_2 = tf_shuffle_xor<0xffffffffu>(argmin_1[0], 4, 32);
  int argmin_at_other_2;
  argmin_at_other_2 = tf_shuffle_xor<0xffffffffu>(argmin_at[0], 4, 32);
  float next_26 = (bool(bool((argmin_1_other_2 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_2) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_2) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_2))) & (argmin_at_other_2 < argmin_at[0]))) ? argmin_1_other_2 : argmin_1[0]);
  int next_27 = (bool(bool((argmin_1_other_2 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_2) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_2) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_2))) & (argmin_at_other_2 < argmin_at[0]))) ? argmin_at_other_2 : argmin_at[0]);
  argmin_1[0] = next_26;
  argmin_at[0] = next_27;
  float argmin_1_other_3;
  argmin_1_other_3 = tf_shuffle_xor<0xffffffffu>(argmin_1[0], 2, 32);
  int argmin_at_other_3;
  argmin_at_other_3 = tf_shuffle_xor<0xffffffffu>(argmin_at[0], 2, 32);
  float next_28 = (bool(bool((argmin_1_other_3 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_3) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_3) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_3))) & (argmin_at_other_3 < argmin_at[0]))) ? argmin_1_other_3 : argmin_1[0]);
  int next_29 = (bool(bool((argmin_1_other_3 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_3) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_3) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_3))) & (argmin_at_other_3 < argmin_at[0]))) ? argmin_at_other_3 : argmin_at[0]);
  argmin_1[0] = next_28;
  argmin_at[0] = next_29;
  float argmin_1_other_4;
  argmin_1_other_4 = tf_shuffle_xor<0xffffffffu>(argmin_1[0], 1, 32);
  int argmin_at_other_4;
  argmin_at_other_4 = tf_shuffle_xor<0xffffffffu>(argmin_at[0], 1, 32);
  float next_30 = (bool(bool((argmin_1_other_4 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_4) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_4) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_4))) & (argmin_at_other_4 < argmin_at[0]))) ? argmin_1_other_4 : argmin_1[0]);
  int next_31 = (bool(bool((argmin_1_other_4 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_4) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_4) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_4))) & (argmin_at_other_4 < argmin_at[0]))) ? argmin_at_other_4 : argmin_at[0]);
  argmin_1[0] = next_30;
  argmin_at[0] = next_31;
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  if (lane_of_warp < 1) {
    max_1_shared[warp_1] = max_1[0];
    min_1_shared[warp_1] = min_1[0];
    argmax_1_shared[warp_1] = argmax_1[0];
    argmax_at_shared[warp_1] = argmax_at[0];
    argmin_1_shared[warp_1] = argmin_1[0];
    argmin_at_shared[warp_1] = argmin_at[0];
  }
  __syncthreads();
  max_1[0] = max_1_shared[0];
  #pragma unroll
  for (int slot = 1; slot < 8; ++slot) {
    float max_1_other_5 = max_1_shared[slot];
    max_1[0] = tf_maximum(max_1[0], max_1_other_5);
  }
  min_1[0] = min_1_shared[0];
  #pragma unroll
  for (int slot_1 = 1; slot_1 < 8; ++slot_1) {
    float min_1_other_5 = min_1_shared[slot_1];
    min_1[0] = tf_minimum(min_1[0], min_1_other_5);
  }
  argmax_1[0] = argmax_1_shared[0];
  argmax_at[0] = argmax_at_shared[0];
  #pragma unroll
  for (int slot_2 = 1; slot_2 < 8; ++slot_2) {
    float argmax_1_other_5 = argmax_1_shared[slot_2];
    int argmax_at_other_5 = argmax_at_shared[slot_2];
    float next_32 = (bool(bool((argmax_1_other_5 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_5) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_5) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_5))) & (argmax_at_other_5 < argmax_at[0]))) ? argmax_1_other_5 : argmax_1[0]);
    int next_33 = (bool(bool((argmax_1_other_5 > argmax_1[0]) | bool(tf_isnan(argmax_1_other_5) & (!tf_isnan(argmax_1[0])))) | bool(bool((argmax_1[0] == argmax_1_other_5) | bool(tf_isnan(argmax_1[0]) & tf_isnan(argmax_1_other_5))) & (argmax_at_other_5 < argmax_at[0]))) ? argmax_at_other_5 : argmax_at[0]);
    argmax_1[0] = next_32;
    argmax_at[0] = next_33;
  }
  argmin_1[0] = argmin_1_shared[0];
  argmin_at[0] = argmin_at_shared[0];
  #pragma unroll
  for (int slot_3 = 1; slot_3 < 8; ++slot_3) {
    float argmin_1_other_5 = argmin_1_shared[slot_3];
    int argmin_at_other_5 = argmin_at_shared[slot_3];
    float next_34 = (bool(bool((argmin_1_other_5 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_5) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_5) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_5))) & (argmin_at_other_5 < argmin_at[0]))) ? argmin_1_other_5 : argmin_1[0]);
    int next_35 = (bool(bool((argmin_1_other_5 < argmin_1[0]) | bool(tf_isnan(argmin_1_other_5) & (!tf_isnan(argmin_1[0])))) | bool(bool((argmin_1[0] == argmin_1_other_5) | bool(tf_isnan(argmin_1[0]) & tf_isnan(argmin_1_other_5))) & (argmin_at_other_5 < argmin_at[0]))) ? argmin_at_other_5 : argmin_at[0]);
    argmin_1[0] = next_34;
    argmin_at[0] = next_35;
  }
  // %max, %min, %argmax, %argmin: one value a row
  if (thread < 1) {
    max_[block] = max_1[0];
    min_[block] = min_1[0];
    argmax[block] = (long long)argmax_at[0];
    argmin[block] = (long long)argmin_at[0];
  }
}
