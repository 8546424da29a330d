// k_add_1_mul_2: 64 blocks of 256 threads, 67072 bytes of shared memory, for sm_90a
// nodes: %matmul, %add, %sigmoid, %sigmoid_1, %sigmoid_2, %mul, %tanh, %mul_1, %add_1, %tanh_1, %mul_2
// schedule: h [GRID-CTA_16,CTA_256]S; w [GRID-CTA_8,CTA_256]S; w [GRID-CTA_8,CTA_256]S; w [GRID-CTA_8,CTA_256]S; w [GRID-CTA_8,CTA_256]S; add_1 [GRID-CTA_16,GRID-CTA_8,WARP]; mul_2 [GRID-CTA_16,GRID-CTA_8,WARP]; tile_0=16; tile_1=8; cta_num=64; cta_size=256;
// reads 1245184 bytes, writes 65536 bytes
// shared memory: 67072 bytes allocated, 67072 requested
extern "C" __global__ void __launch_bounds__(256, 1)
k_add_1_mul_2(
    const float* __restrict__ h,
    const float* __restrict__ w,
    const float* __restrict__ g,
    const float* __restrict__ c,
    float* __restrict__ add_1,
    float* __restrict__ mul_2) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  float* const h_tile = reinterpret_cast<float*>(tf_shared);  // %h
  float* const w_tile = reinterpret_cast<float*>(tf_shared + 58624);  // %w
  float* const w_tile_1 = reinterpret_cast<float*>(tf_shared + 33280);  // %w
  float* const w_tile_2 = reinterpret_cast<float*>(tf_shared + 41728);  // %w
  float* const w_tile_3 = reinterpret_cast<float*>(tf_shared + 50176);  // %w
  float* const matmul_sums = reinterpret_cast<float*>(tf_shared + 16896);
  tf_wait_for_earlier_kernel();
  const int tile1 = (block & 31);
  const int tile0 = (block >> 5);
  // %h: copy -> shared memory
  #pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int item = 256 * step + thread;
    const int x = (item & 63);
    const int i0 = (item >> 6);
    tf_async_copy<16>(h_tile + 264 * i0 + 4 * x, h + 256 * i0 + 4096 * tile0 + 4 * x);
  }
  // %w: copy -> shared memory
  #pragma unroll
  for (int step_1 = 0; step_1 < 2; ++step_1) {
    const int item_1 = 256 * step_1 + thread;
    const int x_1 = (item_1 & 63);
    const int i0_1 = (item_1 >> 6);
    tf_async_copy<16>(w_tile_1 + 264 * i0_1 + 4 * x_1, w + 256 * i0_1 + 2048 * tile1 + 4 * x_1 + 65536);
  }
  // %w: copy -> shared memory
  #pragma unroll
  for (int step_2 = 0; step_2 < 2; ++step_2) {
    const int item_2 = 256 * step_2 + thread;
    const int x_2 = (item_2 & 63);
    const int i0_2 = (item_2 >> 6);
    tf_async_copy<16>(w_tile_2 + 264 * i0_2 + 4 * x_2, w + 256 * i0_2 + 2048 * tile1 + 4 * x_2);
  }
  // %w: copy -> shared memory
  #pragma unroll
  for (int step_3 = 0; step_3 < 2; ++step_3) {
    const int item_3 = 256 * step_3 + thread;
    const int x_3 = (item_3 & 63);
    const int i0_3 = (item_3 >> 6);
    tf_async_copy<16>(w_tile_3 + 264 * i0_3 + 4 * x_3, w + 256 * i0_3 + 2048 * tile1 + 4 * x_3 + 131072);
  }
  // %w: copy -> shared memory
  #pragma unroll
  for (int step_4 = 0; step_4 < 2; ++step_4) {
    const int item_4 = 256 * step_4 + thread;
    const int x_4 = (item_4 & 63);
    const int i0_4 = (item_4 >> 6);
    tf_async_copy<16>(w_tile + 264 * i0_4 + 4 * x_4, w + 256 * i0_4 + 2048 * tile1 + 4 * x_4 + 196608);
  }
  tf_async_group();
  alignas(16) float g_v_ahead[2];
  alignas(16) float c_v_ahead[2];
  alignas(16) float g_v_1_ahead[2];
  alignas(16) float g_v_2_ahead[2];
  alignas(16) float g_v_3_ahead[2];
  const int warp_1 = (thread >> 5);
  const int lane_of_warp = (thread & 31);
  if (warp_1 < 2) {
    tf_vector_load<2>(g_v_ahead, g + 2 * lane_of_warp + 16384 * tile0 + 8 * tile1 + 8192 * warp_1 + 1016 * (lane_of_warp >> 2) + 256);
    tf_vector_load<2>(c_v_ahead, c + 2 * lane_of_warp + 4096 * tile0 + 8 * tile1 + 2048 * warp_1 + 248 * (lane_of_warp >> 2));
    tf_vector_load<2>(g_v_1_ahead, g + 2 * lane_of_warp + 16384 * tile0 + 8 * tile1 + 8192 * warp_1 + 1016 * (lane_of_warp >> 2));
    tf_vector_load<2>(g_v_2_ahead, g + 2 * lane_of_warp + 16384 * tile0 + 8 * tile1 + 8192 * warp_1 + 1016 * (lane_of_warp >> 2) + 512);
    tf_vector_load<2>(g_v_3_ahead, g + 2 * lane_of_warp + 16384 * tile0 + 8 * tile1 + 8192 * warp_1 + 1016 * (lane_of_warp >> 2) + 768);
  }
  tf_async_wait<0>();
  __syncthreads();
  // %add_1, %mul_2: product, %matmul, %matmul, %matmul, %matmul in registers -> global memory
  // %matmul: the warp's tile on the matrix unit
  alignas(16) float matmul_sum[4];
  #pragma unroll
  for (int n = 0; n < 4; ++n) {
    matmul_sum[n] = 0.0f;
  }
  tf_f32_product<3, 1, 1, false, false, true, true, true, 8, 32>(matmul_sum, h_tile + 32 * warp_1, 264, w_tile_1 + 32 * warp_1, 264);
  // %matmul: the warp's tile on the matrix unit
  alignas(16) float matmul_sum_1[4];
  #pragma unroll
  for (int n_1 = 0; n_1 < 4; ++n_1) {
    matmul_sum_1[n_1] = 0.0f;
  }
  tf_f32_product<3, 1, 1, false, false, true, true, true, 8, 32>(matmul_sum_1, h_tile + 32 * warp_1, 264, w_tile_2 + 32 * warp_1, 264);
  // %matmul: the warp's tile on the matrix unit
  alignas(16) float matmul_sum_2[4];
  #pragma unroll
  for (int n_2 = 0; n_2 < 4; ++n_2) {
    matmul_sum_2[n_2] = 0.0f;
  }
  tf_f32_product<3, 1, 1, false, false, true, true, true, 8, 32>(matmul_sum_2, h_tile + 32 * warp_1, 264, w_tile_3 + 32 * warp_1, 264);
  // %matmul: the warp's tile on the matrix unit
  alignas(16) float matmul_sum_3[4];
  #pragma unroll
  for (int n_3 = 0; n_3 < 4; ++n_3) {
    matmul_sum_3[n_3] = 0.0f;
  }
  tf_f32_product<3, 1, 1, false, false, true, true, true, 8, 32>(matmul_sum_3, h_tile + 32 * warp_1, 264, w_tile + 32 * warp_1, 264);
  #pragma unroll
  for (int place = 0; place < 2; ++place) {
    tf_vector_store<2>(matmul_sums + 2 * lane_of_warp + 64 * place + 512 * warp_1, matmul_sum + 2 * place);
  }
  #pragma unroll
  for (int place_1 = 0; place_1 < 2; ++place_1) {
    tf_vector_store<2>(matmul_sums + 2 * lane_of_warp + 64 * place_1 + 512 * warp_1 + 128, matmul_sum_1 + 2 * place_1);
  }
  #pragma unroll
  for (int place_2 = 0; place_2 < 2; ++place_2) {
    tf_vector_store<2>(matmul_sums + 2 * lane_of_warp + 64 * place_2 + 512 * warp_1 + 256, matmul_sum_2 + 2 * place_2);
  }
  #pragma unroll
  for (int place_3 = 0; place_3 < 2; ++place_3) {
    tf_vector_store<2>(matmul_sums + 2 * lane_of_warp + 64 * place_3 + 512 * warp_1 + 384, matmul_sum_3 + 2 * place_3);
  }
  __syncthreads();
  if (warp_1 < 2) {
    // %matmul: the sums of 8 warps
    alignas(16) float matmul_total[2];
    alignas(16) float matmul_part[2];
    tf_vector_load<2>(matmul_total, matmul_sums + 2 * lane_of_warp + 64 * warp_1);
    #pragma unroll
    for (int n_4 = 1; n_4 < 8; ++n_4) {
      tf_vector_load<2>(matmul_part, matmul_sums + 2 * lane_of_warp + 512 * n_4 + 64 * warp_1);
      matmul_total[0] = (matmul_total[0] + matmul_part[0]);
      matmul_total[1] = (matmul_total[1] + matmul_part[1]);
    }
    // %matmul: the sums of 8 warps
    alignas(16) float matmul_total_1[2];
    alignas(16) float matmul_part_1[2];
    tf_vector_load<2>(matmul_total_1, matmul_sums + 2 * lane_of_warp + 64 * warp_1 + 128);
    #pragma unroll
    for (int n_5 = 1; n_5 < 8; ++n_5) {
      tf_vector_load<2>(matmul_part_1, matmul_sums + 2 * lane_of_warp + 512 * n_5 + 64 * warp_1 + 128);
      matmul_total_1[0] = (matmul_total_1[0] + matmul_part_1[0]);
      matmul_total_1[1] = (matmul_total_1[1] + matmul_part_1[1]);
    }
    // %matmul: the sums of 8 warps
    alignas(16) float matmul_total_2[2];
    alignas(16) float matmul_part_2[2];
    tf_vector_load<2>(matmul_total_2, matmul_sums + 2 * lane_of_warp + 64 * warp_1 + 256);
    #pragma unroll
    for (int n_6 = 1; n_6 < 8; ++n_6) {
      tf_vector_load<2>(matmul_part_2, matmul_sums + 2 * lane_of_warp + 512 * n_6 + 64 * warp_1 + 256);
      matmul_total_2[0] = (matmul_total_2[0] + matmul_part_2[0]);
      matmul_total_2[1] = (matmul_total_2[1] + matmul_part_2[1]);
    }
    // %matmul: the sums of 8 warps
    alignas(16) float matmul_total_3[2];
    alignas(16) float matmul_part_3[2];
    tf_vector_load<2>(matmul_total_3, matmul_sums + 2 * lane_of_warp + 64 * warp_1 + 384);
    #pragma unroll
    for (int n_7 = 1; n_7 < 8; ++n_7) {
      tf_vector_load<2>(matmul_part_3, matmul_sums + 2 * lane_of_warp + 512 * n_7 + 64 * warp_1 + 384);
      matmul_total_3[0] = (matmul_total_3[0] + matmul_part_3[0]);
      matmul_total_3[1] = (matmul_total_3[1] + matmul_part_3[1]);
    }
    alignas(16) float add_1_out[2];
    alignas(16) float mul_2_out[2];
    alignas(16) float g_v[2];
    #pragma unroll
    for (int v_9 = 0; v_9 < 2; ++v_9) {
      g_v[v_9] = g_v_ahead[v_9];
    }
    alignas(16) float c_v[2];
    #pragma unroll
    for (int v_10 = 0; v_10 < 2; ++v_10) {
      c_v[v_10] = c_v_ahead[v_10];
    }
    alignas(16) float g_v_1[2];
    #pragma unroll
    for (int v_11 = 0; v_11 < 2; ++v_11) {
      g_v_1[v_11] = g_v_1_ahead[v_11];
    }
    alignas(16) float g_v_2[2];
    #pragma unroll
    for (int v_12 = 0; v_12 < 2; ++v_12) {
      g_v_2[v_12] = g_v_2_ahead[v_12];
    }
    alignas(16) float g_v_3[2];
    #pragma unroll
    for (int v_13 = 0; v_13 < 2; ++v_13) {
      g_v_3[v_13] = g_v_3_ahead[v_13];
    }
    #pragma unroll
    for (int v_6 = 0; v_6 < 2; ++v_6) {
      float add = (matmul_total[v_6] + g_v[v_6]);
      float sigmoid_1 = tf_sigmoid(add);
      float mul = (sigmoid_1 * c_v[v_6]);
      float add_2 = (matmul_total_1[v_6] + g_v_1[v_6]);
      float sigmoid = tf_sigmoid(add_2);
      float add_3 = (matmul_total_2[v_6] + g_v_2[v_6]);
      float tanh_ = tanhf(add_3);
      float mul_1 = (sigmoid * tanh_);
      float add_1_1 = (mul + mul_1);
      add_1_out[v_6] = add_1_1;
      float add_4 = (matmul_total_3[v_6] + g_v_3[v_6]);
      float sigmoid_2 = tf_sigmoid(add_4);
      float tanh_1 = tanhf(add_1_1);
      float mul_2_1 = (sigmoid_2 * tanh_1);
      mul_2_out[v_6] = mul_2_1;
    }
    tf_vector_store<2>(add_1 + 2 * lane_of_warp + 4096 * tile0 + 8 * tile1 + 2048 * warp_1 + 248 * (lane_of_warp >> 2), add_1_out);
    tf_vector_store<2>(mul_2 + 2 * lane_of_warp + 4096 * tile0 + 8 * tile1 + 2048 * warp_1 + 248 * (lane_of_warp >> 2), mul_2_out);
  }
}
