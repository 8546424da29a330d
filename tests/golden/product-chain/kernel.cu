// k_clamp_2: 132 blocks of 640 threads, 221184 bytes of shared memory, for sm_90a
// nodes: %matmul, %add, %clamp, %matmul_1, %add_1, %clamp_1, %matmul_2, %add_2, %clamp_2
// schedule: matmul [GRID-CTA_256,CTA_64,LOOP_64]R; matmul_1 [GRID-CTA_256,CTA_64,LOOP_64]R; matmul_2 [GRID-CTA_256,CTA_64,LOOP_64]R; left_slots=4; slots=0; warpgroups=4; cta_num=132; cta_size=640;
// reads 8413568 bytes, writes 8388608 bytes
// 221184 bytes of shared memory; right operands stay
extern "C" __global__ void __launch_bounds__(640, 1)
k_clamp_2(
    const tf_f16* __restrict__ x,
    const tf_f16* __restrict__ w0,
    const tf_f16* __restrict__ b0,
    const tf_f16* __restrict__ w1,
    const tf_f16* __restrict__ b1,
    const tf_f16* __restrict__ w2,
    const tf_f16* __restrict__ b2,
    tf_f16* __restrict__ clamp_2,
    const __grid_constant__ tf_tensor_map w0_map,
    const __grid_constant__ tf_tensor_map w1_map,
    const __grid_constant__ tf_tensor_map w2_map,
    const __grid_constant__ tf_tensor_map x_map,
    const __grid_constant__ tf_tensor_map clamp_2_map) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(1024) unsigned char tf_shared[];
  tf_f16* const x_slots = reinterpret_cast<tf_f16*>(tf_shared);  // %x
  tf_f16* const w0_slots = reinterpret_cast<tf_f16*>(tf_shared + 131072);  // %w0
  tf_f16* const w1_slots = reinterpret_cast<tf_f16*>(tf_shared + 139264);  // %w1
  tf_f16* const w2_slots = reinterpret_cast<tf_f16*>(tf_shared + 147456);  // %w2
  tf_f16* const clamp_2_stages = reinterpret_cast<tf_f16*>(tf_shared + 155648);  // %clamp_2
  tf_tensor_prefetch(w0_map);
  tf_tensor_prefetch(w1_map);
  tf_tensor_prefetch(w2_map);
  tf_tensor_prefetch(x_map);
  tf_tensor_prefetch(clamp_2_map);
  __shared__ __align__(8) unsigned long long tf_left_full[4], tf_left_empty[4];
  tf_ring_init(tf_left_full, tf_left_empty, 4, 1, 16);
  __shared__ __align__(8) unsigned long long tf_right0_full[1], tf_right0_empty[1];
  tf_ring_init(tf_right0_full, tf_right0_empty, 1, 1, 16);
  __shared__ __align__(8) unsigned long long tf_right1_full[1], tf_right1_empty[1];
  tf_ring_init(tf_right1_full, tf_right1_empty, 1, 1, 16);
  __shared__ __align__(8) unsigned long long tf_right2_full[1], tf_right2_empty[1];
  tf_ring_init(tf_right2_full, tf_right2_empty, 1, 1, 16);
  tf_rings_ready();
  tf_wait_for_earlier_kernel();
  if (threadIdx.x >= 512) {
    tf_lower_registers<40>();
    if (threadIdx.x == 512) {
      const int thread = threadIdx.x - 512;
      int tf_left_slot = 0;
      unsigned int tf_left_phase = 1u;
      int tf_right0_slot = 0;
      unsigned int tf_right0_phase = 1u;
      int tf_right1_slot = 0;
      unsigned int tf_right1_phase = 1u;
      int tf_right2_slot = 0;
      unsigned int tf_right2_phase = 1u;
      {
        const int slot = tf_right0_slot;
        tf_bulk_wait(tf_right0_empty + tf_right0_slot, tf_right0_phase);
        tf_slot_copy(w0_slots + 4096 * slot, w0_map, tf_right0_full + tf_right0_slot, 8192, {0, 0});
        tf_slot_arrive(tf_right0_full + tf_right0_slot);
      }
      tf_next_slot<1>(tf_right0_slot, tf_right0_phase);
      {
        const int slot_1 = tf_right1_slot;
        tf_bulk_wait(tf_right1_empty + tf_right1_slot, tf_right1_phase);
        tf_slot_copy(w1_slots + 4096 * slot_1, w1_map, tf_right1_full + tf_right1_slot, 8192, {0, 0});
        tf_slot_arrive(tf_right1_full + tf_right1_slot);
      }
      tf_next_slot<1>(tf_right1_slot, tf_right1_phase);
      {
        const int slot_2 = tf_right2_slot;
        tf_bulk_wait(tf_right2_empty + tf_right2_slot, tf_right2_phase);
        tf_slot_copy(w2_slots + 4096 * slot_2, w2_map, tf_right2_full + tf_right2_slot, 8192, {0, 0});
        tf_slot_arrive(tf_right2_full + tf_right2_slot);
      }
      tf_next_slot<1>(tf_right2_slot, tf_right2_phase);
      for (int tile = block; tile < 256; tile += 132) {
        {
          const int left_slot = tf_left_slot;
          tf_bulk_wait(tf_left_empty + tf_left_slot, tf_left_phase);
          tf_slot_copy(x_slots + 16384 * left_slot, x_map, tf_left_full + tf_left_slot, 32768, {256 * tile, 0});
          tf_slot_arrive(tf_left_full + tf_left_slot);
        }
        tf_next_slot<4>(tf_left_slot, tf_left_phase);
      }
    }
  } else {
    tf_raise_registers<104>();
    int tf_left_slot = 0;
    unsigned int tf_left_phase = 0u;
    int tf_right0_slot = 0;
    unsigned int tf_right0_phase = 0u;
    int tf_right1_slot = 0;
    unsigned int tf_right1_phase = 0u;
    int tf_right2_slot = 0;
    unsigned int tf_right2_phase = 0u;
    int tf_left_open = 0;
    int tf_right0_open = 0;
    int tf_right1_open = 0;
    int tf_right2_open = 0;
    {
      const int slot = tf_right0_slot;
      tf_bulk_wait(tf_right0_full + tf_right0_slot, tf_right0_phase);
      tf_next_slot<1>(tf_right0_slot, tf_right0_phase);
      ++tf_right0_open;
      tf_release_slots<1, 1, 1, 1>(tf_right0_empty, tf_right0_slot, tf_right0_open);
    }
    {
      const int slot_1 = tf_right1_slot;
      tf_bulk_wait(tf_right1_full + tf_right1_slot, tf_right1_phase);
      tf_next_slot<1>(tf_right1_slot, tf_right1_phase);
      ++tf_right1_open;
      tf_release_slots<1, 1, 1, 1>(tf_right1_empty, tf_right1_slot, tf_right1_open);
    }
    {
      const int slot_2 = tf_right2_slot;
      tf_bulk_wait(tf_right2_full + tf_right2_slot, tf_right2_phase);
      tf_next_slot<1>(tf_right2_slot, tf_right2_phase);
      ++tf_right2_open;
      tf_release_slots<1, 1, 1, 1>(tf_right2_empty, tf_right2_slot, tf_right2_open);
    }
    for (int tile = block; tile < 256; tile += 132) {
      alignas(16) float sum[32];
      // %matmul: the inner axis in 1 steps
      {
        const int left_slot = tf_left_slot;
        tf_bulk_wait(tf_left_full + tf_left_slot, tf_left_phase);
        {
          const unsigned long long tf_left = tf_operand<128>(x_slots + 16384 * left_slot + 4096 * (thread >> 7), 32768, 1024);
          const unsigned long long tf_right = tf_operand<128>(w0_slots, 8192, 1024);
          tf_products_begin();
          tf_wgmma_n64_f16_f16<0, 0>(sum, tf_left, tf_right, 0 != 0);
          tf_wgmma_n64_f16_f16<0, 0>(sum, tf_left + 2, tf_right + 2, 1);
          tf_wgmma_n64_f16_f16<0, 0>(sum, tf_left + 4, tf_right + 4, 1);
          tf_wgmma_n64_f16_f16<0, 0>(sum, tf_left + 6, tf_right + 6, 1);
          tf_products_end();
        }
        tf_products_wait<1>(); tf_settle(sum);
        tf_next_slot<4>(tf_left_slot, tf_left_phase);
        ++tf_left_open;
        tf_release_slots<4, 1, 1, 1>(tf_left_empty, tf_left_slot, tf_left_open);
      }
      tf_products_wait<0>(); tf_settle(sum);
      tf_release_slots<4, 0, 1, 1>(tf_left_empty, tf_left_slot, tf_left_open);
      // %clamp: from the sums of %matmul to the next left operand
      const int own_row = 16 * ((thread >> 5) & 3) + ((thread >> 2) & 7);
      const int pair = (thread & 3);
      alignas(16) tf_f16 clamp_left[32];
      #pragma unroll
      for (int b = 0; b < 8; ++b) {
        alignas(16) tf_f16 b0_neighbours[2];
        tf_vector_load<2>(b0_neighbours, b0 + 8 * b + 2 * pair);
        alignas(16) tf_f16 matmul_pair[2];
        tf_round_pair(matmul_pair + 0, sum[4 * b], sum[4 * b + 1]);
        tf_f16 add_2 = tf_f16((tf_float(matmul_pair[0]) + tf_float(b0_neighbours[0])));
        tf_f16 clamp_3 = tf_f16(tf_minimum(tf_maximum(tf_float(add_2), 0.0f), 3.0f));
        clamp_left[4 * b] = clamp_3;
        tf_f16 add_3 = tf_f16((tf_float(matmul_pair[1]) + tf_float(b0_neighbours[1])));
        tf_f16 clamp_4 = tf_f16(tf_minimum(tf_maximum(tf_float(add_3), 0.0f), 3.0f));
        clamp_left[4 * b + 1] = clamp_4;
        alignas(16) tf_f16 b0_neighbours_1[2];
        tf_vector_load<2>(b0_neighbours_1, b0 + 8 * b + 2 * pair);
        alignas(16) tf_f16 matmul_pair_1[2];
        tf_round_pair(matmul_pair_1 + 0, sum[4 * b + 2], sum[4 * b + 3]);
        tf_f16 add_6 = tf_f16((tf_float(matmul_pair_1[0]) + tf_float(b0_neighbours_1[0])));
        tf_f16 clamp_7 = tf_f16(tf_minimum(tf_maximum(tf_float(add_6), 0.0f), 3.0f));
        clamp_left[4 * b + 2] = clamp_7;
        tf_f16 add_7 = tf_f16((tf_float(matmul_pair_1[1]) + tf_float(b0_neighbours_1[1])));
        tf_f16 clamp_8 = tf_f16(tf_minimum(tf_maximum(tf_float(add_7), 0.0f), 3.0f));
        clamp_left[4 * b + 3] = clamp_8;
      }
      // %matmul_1: the inner axis in 1 steps
      {
        const unsigned long long tf_right = tf_operand<128>(w1_slots, 8192, 1024);
        tf_products_begin();
        tf_wgmma_n64_f16_f16_held<0, 0>(sum, tf_left_words(clamp_left).of, tf_right, 0 != 0);
        tf_wgmma_n64_f16_f16_held<0, 0>(sum, tf_left_words(clamp_left + 8).of, tf_right + 2, 1);
        tf_wgmma_n64_f16_f16_held<0, 0>(sum, tf_left_words(clamp_left + 16).of, tf_right + 4, 1);
        tf_wgmma_n64_f16_f16_held<0, 0>(sum, tf_left_words(clamp_left + 24).of, tf_right + 6, 1);
        tf_products_end();
      }
      tf_products_wait<0>(); tf_settle(sum);
      // %clamp_1: from the sums of %matmul_1 to the next left operand
      const int own_row_1 = 16 * ((thread >> 5) & 3) + ((thread >> 2) & 7);
      const int pair_1 = (thread & 3);
      alignas(16) tf_f16 clamp_1_left[32];
      #pragma unroll
      for (int b_1 = 0; b_1 < 8; ++b_1) {
        alignas(16) tf_f16 b1_neighbours[2];
        tf_vector_load<2>(b1_neighbours, b1 + 8 * b_1 + 2 * pair_1);
        alignas(16) tf_f16 matmul_1_pair[2];
        tf_round_pair(matmul_1_pair + 0, sum[4 * b_1], sum[4 * b_1 + 1]);
        tf_f16 add_1_3 = tf_f16((tf_float(matmul_1_pair[0]) + tf_float(b1_neighbours[0])));
        tf_f16 clamp_1_3 = tf_f16(tf_minimum(tf_maximum(tf_float(add_1_3), 0.0f), 3.0f));
        clamp_1_left[4 * b_1] = clamp_1_3;
        tf_f16 add_1_4 = tf_f16((tf_float(matmul_1_pair[1]) + tf_float(b1_neighbours[1])));
        tf_f16 clamp_1_4 = tf_f16(tf_minimum(tf_maximum(tf_float(add_1_4), 0.0f), 3.0f));
        clamp_1_left[4 * b_1 + 1] = clamp_1_4;
        alignas(16) tf_f16 b1_neighbours_1[2];
        tf_vector_load<2>(b1_neighbours_1, b1 + 8 * b_1 + 2 * pair_1);
        alignas(16) tf_f16 matmul_1_pair_1[2];
        tf_round_pair(matmul_1_pair_1 + 0, sum[4 * b_1 + 2], sum[4 * b_1 + 3]);
        tf_f16 add_1_7 = tf_f16((tf_float(matmul_1_pair_1[0]) + tf_float(b1_neighbours_1[0])));
        tf_f16 clamp_1_7 = tf_f16(tf_minimum(tf_maximum(tf_float(add_1_7), 0.0f), 3.0f));
        clamp_1_left[4 * b_1 + 2] = clamp_1_7;
        tf_f16 add_1_8 = tf_f16((tf_float(matmul_1_pair_1[1]) + tf_float(b1_neighbours_1[1])));
        tf_f16 clamp_1_8 = tf_f16(tf_minimum(tf_maximum(tf_float(add_1_8), 0.0f), 3.0f));
        clamp_1_left[4 * b_1 + 3] = clamp_1_8;
      }
      // %matmul_2: the inner axis in 1 steps
      {
        const unsigned long long tf_right = tf_operand<128>(w2_slots, 8192, 1024);
        tf_products_begin();
        tf_wgmma_n64_f16_f16_held<0, 0>(sum, tf_left_words(clamp_1_left).of, tf_right, 0 != 0);
        tf_wgmma_n64_f16_f16_held<0, 0>(sum, tf_left_words(clamp_1_left + 8).of, tf_right + 2, 1);
        tf_wgmma_n64_f16_f16_held<0, 0>(sum, tf_left_words(clamp_1_left + 16).of, tf_right + 4, 1);
        tf_wgmma_n64_f16_f16_held<0, 0>(sum, tf_left_words(clamp_1_left + 24).of, tf_right + 6, 1);
        tf_products_end();
      }
      tf_products_wait<0>(); tf_settle(sum);
      // %clamp_2: from the sums
      const int own_row_2 = 16 * ((thread >> 5) & 3) + ((thread >> 2) & 7);
      const int pair_2 = (thread & 3);
      #pragma unroll
      for (int half_1 = 0; half_1 < 2; ++half_1) {
        #pragma unroll
        for (int b_2 = 0; b_2 < 8; ++b_2) {
          alignas(16) tf_f16 clamp_2_out[2];
          alignas(16) tf_f16 b2_neighbours[2];
          tf_vector_load<2>(b2_neighbours, b2 + 8 * b_2 + 2 * pair_2);
          tf_f16 matmul_2_2 = tf_f16(sum[4 * b_2 + 2 * half_1]);
          tf_f16 add_2_2 = tf_f16((tf_float(matmul_2_2) + tf_float(b2_neighbours[0])));
          tf_f16 clamp_2_2 = tf_f16(tf_minimum(tf_maximum(tf_float(add_2_2), 0.0f), 3.0f));
          clamp_2_out[0] = clamp_2_2;
          tf_f16 matmul_2_3 = tf_f16(sum[4 * b_2 + 2 * half_1 + 1]);
          tf_f16 add_2_3 = tf_f16((tf_float(matmul_2_3) + tf_float(b2_neighbours[1])));
          tf_f16 clamp_2_3 = tf_f16(tf_minimum(tf_maximum(tf_float(add_2_3), 0.0f), 3.0f));
          clamp_2_out[1] = clamp_2_3;
          tf_swizzled_store<128, 2>(clamp_2_stages, 8 * b_2 + 512 * half_1 + 64 * own_row_2 + 2 * pair_2 + 8192 * (thread >> 7), clamp_2_out);
        }
      }
      tf_proxy_fence();
      tf_team_barrier<128>();
      tf_tensor_store<128>(clamp_2_map, clamp_2_stages + 8192 * (thread >> 7), {256 * tile + 64 * (thread >> 7), 0});
      tf_tensor_store_wait<0, 128>();
      tf_team_barrier<128>();
    }
    tf_release_slots<1, 0, 1, 1>(tf_right0_empty, tf_right0_slot, tf_right0_open);
    tf_release_slots<1, 0, 1, 1>(tf_right1_empty, tf_right1_slot, tf_right1_open);
    tf_release_slots<1, 0, 1, 1>(tf_right2_empty, tf_right2_slot, tf_right2_open);
  }
}
