// k_matmul_1: 132 blocks of 512 threads, 172032 bytes of shared memory, for sm_90a
// nodes: %matmul, %mul, %where, %softmax_max, %softmax_exp, %softmax_sum, %softmax_inverse, %softmax, %matmul_1
// schedule: matmul [GRID,GRID-CTA_192,LOOP_96]R; softmax_max [GRID,GRID-CTA_192,LOOP_96]W; softmax_sum [GRID,GRID-CTA_192,LOOP_96]W; softmax [GRID,GRID-CTA_192,LOOP_96]R; matmul_1 [GRID,GRID-CTA_192,WARP,LOOP_96]RG; left_slots=2; slots=4; warpgroups=3; band=64; cta_num=132; cta_size=512;
// reads 100663296 bytes, writes 33554432 bytes
// 172032 bytes of shared memory
extern "C" __global__ void __launch_bounds__(512, 1)
k_matmul_1(
    const tf_f16* __restrict__ q,
    const tf_f16* __restrict__ k,
    const tf_f16* __restrict__ v,
    tf_f16* __restrict__ matmul_1,
    const __grid_constant__ tf_tensor_map q_map,
    const __grid_constant__ tf_tensor_map k_map,
    const __grid_constant__ tf_tensor_map v_map,
    const __grid_constant__ tf_tensor_map matmul_1_map) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(1024) unsigned char tf_shared[];
  tf_f16* const q_slots = reinterpret_cast<tf_f16*>(tf_shared);  // %q
  tf_f16* const k_slots = reinterpret_cast<tf_f16*>(tf_shared + 49152);  // %k
  tf_f16* const v_slots = reinterpret_cast<tf_f16*>(tf_shared + 98304);  // %v
  tf_f16* const matmul_1_stage = reinterpret_cast<tf_f16*>(tf_shared + 147456);  // %matmul_1
  tf_tensor_prefetch(q_map);
  tf_tensor_prefetch(k_map);
  tf_tensor_prefetch(v_map);
  tf_tensor_prefetch(matmul_1_map);
  __shared__ __align__(8) unsigned long long tf_left_full[2], tf_left_empty[2];
  tf_ring_init(tf_left_full, tf_left_empty, 2, 1, 12);
  __shared__ __align__(8) unsigned long long tf_keys_full[4], tf_keys_empty[4];
  tf_ring_init(tf_keys_full, tf_keys_empty, 4, 1, 12);
  __shared__ __align__(8) unsigned long long tf_values_full[4], tf_values_empty[4];
  tf_ring_init(tf_values_full, tf_values_empty, 4, 1, 12);
  tf_rings_ready();
  tf_wait_for_earlier_kernel();
  if (threadIdx.x >= 384) {
    tf_lower_registers<40>();
    if (threadIdx.x == 384) {
      const int thread = threadIdx.x - 384;
      int tf_left_slot = 0;
      unsigned int tf_left_phase = 1u;
      int tf_keys_slot = 0;
      unsigned int tf_keys_phase = 1u;
      int tf_values_slot = 0;
      unsigned int tf_values_phase = 1u;
      for (int round_ = 0; round_ < 11; ++round_) {
        const int from_last = (block - 131 * (round_ & 1) + 131) < (-1 * block + 131 * (round_ & 1) + 131) ? (block - 131 * (round_ & 1) + 131) : (-1 * block + 131 * (round_ & 1) + 131);
        if (-1 * from_last + 132 * round_ + 131 < 1408) {
          const int tile = -1 * from_last + 132 * round_ + 131;
          const int lead = (tile & 63);
          const int row_tile = -1 * (tile >> 6) + 21;
          const int edge = (192 * row_tile + 192) < 4096 ? (192 * row_tile + 192) : 4096;
          const int edge_1 = tf_index_div(edge + 95, 96) > 1 ? tf_index_div(edge + 95, 96) : 1;
          const int edge_2 = (2 * row_tile) < (edge_1 - 1) ? (2 * row_tile) : (edge_1 - 1);
          const int cut = edge_1 - 1 * edge_2;
          const int last_ = edge_1 - 1;
          {
            const int left_slot = tf_left_slot;
            tf_bulk_wait(tf_left_empty + tf_left_slot, tf_left_phase);
            tf_slot_copy(q_slots + 12288 * left_slot, q_map, tf_left_full + tf_left_slot, 24576, {lead, 192 * row_tile, 0});
            tf_slot_arrive(tf_left_full + tf_left_slot);
          }
          tf_next_slot<2>(tf_left_slot, tf_left_phase);
          {
            const int keys_slot = tf_keys_slot;
            tf_bulk_wait(tf_keys_empty + tf_keys_slot, tf_keys_phase);
            tf_slot_copy(k_slots + 6144 * keys_slot, k_map, tf_keys_full + tf_keys_slot, 12288, {lead, 96 * last_, 0});
            tf_slot_arrive(tf_keys_full + tf_keys_slot);
          }
          tf_next_slot<4>(tf_keys_slot, tf_keys_phase);
          for (int n_5 = 1; n_5 < cut; ++n_5) {
            const int turn = last_ - 1 * n_5;
            {
              const int keys_slot_1 = tf_keys_slot;
              tf_bulk_wait(tf_keys_empty + tf_keys_slot, tf_keys_phase);
              tf_slot_copy(k_slots + 6144 * keys_slot_1, k_map, tf_keys_full + tf_keys_slot, 12288, {lead, 96 * turn, 0});
              tf_slot_arrive(tf_keys_full + tf_keys_slot);
            }
            tf_next_slot<4>(tf_keys_slot, tf_keys_phase);
            {
              const int values_slot = tf_values_slot;
              tf_bulk_wait(tf_values_empty + tf_values_slot, tf_values_phase);
              tf_slot_copy(v_slots + 6144 * values_slot, v_map, tf_values_full + tf_values_slot, 12288, {lead, 96 * turn + 96, 0});
              tf_slot_arrive(tf_values_full + tf_values_slot);
            }
            tf_next_slot<4>(tf_values_slot, tf_values_phase);
          }
          for (int n_7 = cut; n_7 < edge_1; ++n_7) {
            const int turn_1 = last_ - 1 * n_7;
            {
              const int keys_slot_2 = tf_keys_slot;
              tf_bulk_wait(tf_keys_empty + tf_keys_slot, tf_keys_phase);
              tf_slot_copy(k_slots + 6144 * keys_slot_2, k_map, tf_keys_full + tf_keys_slot, 12288, {lead, 96 * turn_1, 0});
              tf_slot_arrive(tf_keys_full + tf_keys_slot);
            }
            tf_next_slot<4>(tf_keys_slot, tf_keys_phase);
            {
              const int values_slot_1 = tf_values_slot;
              tf_bulk_wait(tf_values_empty + tf_values_slot, tf_values_phase);
              tf_slot_copy(v_slots + 6144 * values_slot_1, v_map, tf_values_full + tf_values_slot, 12288, {lead, 96 * turn_1 + 96, 0});
              tf_slot_arrive(tf_values_full + tf_values_slot);
            }
            tf_next_slot<4>(tf_values_slot, tf_values_phase);
          }
          {
            const int values_slot_2 = tf_values_slot;
            tf_bulk_wait(tf_values_empty + tf_values_slot, tf_values_phase);
            tf_slot_copy(v_slots + 6144 * values_slot_2, v_map, tf_values_full + tf_values_slot, 12288, {lead, 0, 0});
            tf_slot_arrive(tf_values_full + tf_values_slot);
          }
          tf_next_slot<4>(tf_values_slot, tf_values_phase);
        }
      }
    }
  } else {
    tf_raise_registers<152>();
    int tf_left_slot = 0;
    unsigned int tf_left_phase = 0u;
    int tf_keys_slot = 0;
    unsigned int tf_keys_phase = 0u;
    int tf_values_slot = 0;
    unsigned int tf_values_phase = 0u;
    int tf_left_open = 0;
    int tf_keys_open = 0;
    int tf_values_open = 0;
    for (int round_ = 0; round_ < 11; ++round_) {
      const int from_last = (block - 131 * (round_ & 1) + 131) < (-1 * block + 131 * (round_ & 1) + 131) ? (block - 131 * (round_ & 1) + 131) : (-1 * block + 131 * (round_ & 1) + 131);
      if (-1 * from_last + 132 * round_ + 131 < 1408) {
        const int tile = -1 * from_last + 132 * round_ + 131;
        const int lead = (tile & 63);
        const int row_tile = -1 * (tile >> 6) + 21;
        const int left_at = (round_ & 1);
        const int edge = (192 * row_tile + 192) < 4096 ? (192 * row_tile + 192) : 4096;
        const int edge_1 = tf_index_div(edge + 95, 96) > 1 ? tf_index_div(edge + 95, 96) : 1;
        const int edge_2 = (2 * row_tile) < (edge_1 - 1) ? (2 * row_tile) : (edge_1 - 1);
        const int cut = edge_1 - 1 * edge_2;
        const int last_ = edge_1 - 1;
        const int warp_1 = (thread >> 5);
        const int lane_of_warp = (thread & 31);
        alignas(16) float softmax_max_so_far[2];
        #pragma unroll
        for (int n = 0; n < 2; ++n) {
          softmax_max_so_far[n] = (-tf_inf_f32());
        }
        alignas(16) float softmax_sum_so_far[2];
        #pragma unroll
        for (int n_1 = 0; n_1 < 2; ++n_1) {
          softmax_sum_so_far[n_1] = 0.0f;
        }
        alignas(16) float matmul_1_so_far[32];
        #pragma unroll
        for (int n_2 = 0; n_2 < 32; ++n_2) {
          matmul_1_so_far[n_2] = 0.0f;
        }
        // %softmax_max: softmax_max_negated is 0.36067376 times the negated maximum that powers are relative to
        alignas(16) float softmax_max_negated[2];
        #pragma unroll
        for (int n_3 = 0; n_3 < 2; ++n_3) {
          softmax_max_negated[n_3] = tf_inf_f32();
        }
        alignas(16) float softmax_max_used[2];
        alignas(16) float matmul_sum[48];
        alignas(16) tf_f16 softmax_held[48];
        // %matmul: the last turn
        {
          const int left_slot = tf_left_slot;
          tf_bulk_wait(tf_left_full + tf_left_slot, tf_left_phase);
          tf_next_slot<2>(tf_left_slot, tf_left_phase);
          ++tf_left_open;
          tf_release_slots<2, 1, 1, 1>(tf_left_empty, tf_left_slot, tf_left_open);
        }
        {
          const int keys_slot = tf_keys_slot;
          tf_bulk_wait(tf_keys_full + tf_keys_slot, tf_keys_phase);
          {
            const unsigned long long tf_left = tf_operand<128>(q_slots + 12288 * left_at + 4096 * (thread >> 7), 24576, 1024);
            const unsigned long long tf_right = tf_operand<128>(k_slots + 6144 * keys_slot, 12288, 1024);
            tf_products_begin();
            tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left, tf_right, 0 != 0);
            tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 2, tf_right + 2, 1);
            tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 4, tf_right + 4, 1);
            tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 6, tf_right + 6, 1);
            tf_products_end();
          }
          tf_products_wait<0>(); tf_settle(matmul_1_so_far); tf_settle(matmul_sum);
          tf_next_slot<4>(tf_keys_slot, tf_keys_phase);
          ++tf_keys_open;
          tf_release_slots<4, 0, 1, 1>(tf_keys_empty, tf_keys_slot, tf_keys_open);
        }
        // %softmax_max: with the elements of this turn
        alignas(16) float softmax_max_new[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          softmax_max_new[i] = softmax_max_so_far[i];
        }
        #pragma unroll
        for (int j = 0; j < 24; ++j) {
          if (j + 96 * last_ + 6 * (j >> 1) + 2 * (lane_of_warp & 3) < 4096) {
            #pragma unroll
            for (int i_1 = 0; i_1 < 2; ++i_1) {
              matmul_sum[2 * (i_1 & 1) + 48 * (i_1 >> 1) + (j & 1) + 4 * (j >> 1)] = (((long long)(j + 96 * last_ + 6 * (j >> 1) + 2 * (lane_of_warp & 3)) > (long long)(8 * i_1 + 192 * row_tile + 16 * warp_1 + (lane_of_warp >> 2))) ? (-tf_inf_f32()) : matmul_sum[2 * (i_1 & 1) + 48 * (i_1 >> 1) + (j & 1) + 4 * (j >> 1)]);
            }
          } else {
            #pragma unroll
            for (int i_2 = 0; i_2 < 2; ++i_2) {
              matmul_sum[2 * (i_2 & 1) + 48 * (i_2 >> 1) + (j & 1) + 4 * (j >> 1)] = (-tf_inf_f32());
            }
          }
          #pragma unroll
          for (int i_3 = 0; i_3 < 2; ++i_3) {
            softmax_max_new[i_3] = tf_maximum(softmax_max_new[i_3], matmul_sum[2 * (i_3 & 1) + 48 * (i_3 >> 1) + (j & 1) + 4 * (j >> 1)]);
          }
        }
        float softmax_max_new_other;
        #pragma unroll
        for (int i_4 = 0; i_4 < 2; ++i_4) {
          softmax_max_new_other = tf_shuffle_xor<0xffffffffu>(softmax_max_new[i_4], 2, 32);
          softmax_max_new[i_4] = tf_maximum(softmax_max_new[i_4], softmax_max_new_other);
          softmax_max_new_other = tf_shuffle_xor<0xffffffffu>(softmax_max_new[i_4], 1, 32);
          softmax_max_new[i_4] = tf_maximum(softmax_max_new[i_4], softmax_max_new_other);
        }
        alignas(16) float softmax_max_factor[2];
        alignas(16) float above[2];
        bool any_above = false;
        #pragma unroll
        for (int i_5 = 0; i_5 < 2; ++i_5) {
          above[i_5] = fmaf(softmax_max_new[i_5], 0.36067376f, softmax_max_negated[i_5]);
          any_above = bool(any_above | (above[i_5] > 8.0f));
        }
        if (any_above) {
          #pragma unroll
          for (int i_6 = 0; i_6 < 2; ++i_6) {
            float negated = (-(softmax_max_new[i_6] * 0.36067376f));
            float factor = ((above[i_6] > 8.0f) ? tf_narrow_exp2((negated - softmax_max_negated[i_6])) : 1.0f);
            softmax_max_negated[i_6] = ((above[i_6] > 8.0f) ? negated : softmax_max_negated[i_6]);
            softmax_sum_so_far[i_6] = (softmax_sum_so_far[i_6] * factor);
            softmax_max_factor[i_6] = factor;
          }
        }
        #pragma unroll
        for (int i_7 = 0; i_7 < 2; ++i_7) {
          softmax_max_used[i_7] = ((softmax_max_negated[i_7] == tf_inf_f32()) ? 0.0f : softmax_max_negated[i_7]);
        }
        #pragma unroll
        for (int i_8 = 0; i_8 < 2; ++i_8) {
          softmax_max_so_far[i_8] = softmax_max_new[i_8];
        }
        // %softmax_sum, %softmax: of this turn
        #pragma unroll
        for (int i_9 = 0; i_9 < 2; ++i_9) {
          #pragma unroll
          for (int j_1 = 0; j_1 < 24; ++j_1) {
            float power = tf_narrow_exp2(fmaf(matmul_sum[2 * (i_9 & 1) + 48 * (i_9 >> 1) + (j_1 & 1) + 4 * (j_1 >> 1)], 0.36067376f, softmax_max_used[i_9]));
            softmax_sum_so_far[i_9] = (softmax_sum_so_far[i_9] + power);
            matmul_sum[2 * (i_9 & 1) + 48 * (i_9 >> 1) + (j_1 & 1) + 4 * (j_1 >> 1)] = power;
          }
        }
        // powers of this turn as a left operand
        #pragma unroll
        for (int n_4 = 0; n_4 < 24; ++n_4) {
          tf_round_pair(softmax_held + (2 * n_4), matmul_sum[2 * n_4], matmul_sum[2 * n_4 + 1]);
        }
        for (int n_5 = 1; n_5 < cut; ++n_5) {
          const int turn = last_ - 1 * n_5;
          {
            const int keys_slot_1 = tf_keys_slot;
            tf_bulk_wait(tf_keys_full + tf_keys_slot, tf_keys_phase);
            {
              const int values_slot = tf_values_slot;
              tf_bulk_wait(tf_values_full + tf_values_slot, tf_values_phase);
              {
                const unsigned long long tf_left = tf_operand<128>(q_slots + 12288 * left_at + 4096 * (thread >> 7), 24576, 1024);
                const unsigned long long tf_right = tf_operand<128>(k_slots + 6144 * keys_slot_1, 12288, 1024);
                tf_products_begin();
                tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left, tf_right, 0 != 0);
                tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 2, tf_right + 2, 1);
                tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 4, tf_right + 4, 1);
                tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 6, tf_right + 6, 1);
                tf_products_end();
              }
              {
                const unsigned long long tf_right = tf_operand<128>(v_slots + 6144 * values_slot, 12288, 1024);
                tf_products_begin();
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held).of, tf_right, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 8).of, tf_right + 128, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 16).of, tf_right + 256, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 24).of, tf_right + 384, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 32).of, tf_right + 512, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 40).of, tf_right + 640, 1);
                tf_products_end();
              }
              tf_products_wait<1>(); tf_settle(matmul_1_so_far); tf_settle(matmul_sum);
              tf_next_slot<4>(tf_values_slot, tf_values_phase);
              ++tf_values_open;
              tf_release_slots<4, 1, 1, 1>(tf_values_empty, tf_values_slot, tf_values_open);
            }
            tf_next_slot<4>(tf_keys_slot, tf_keys_phase);
            ++tf_keys_open;
            tf_release_slots<4, 0, 1, 1>(tf_keys_empty, tf_keys_slot, tf_keys_open);
          }
          // %softmax_max: with the elements of this turn
          alignas(16) float softmax_max_new_1[2];
          #pragma unroll
          for (int i_10 = 0; i_10 < 2; ++i_10) {
            softmax_max_new_1[i_10] = softmax_max_so_far[i_10];
          }
          #pragma unroll
          for (int j_2 = 0; j_2 < 24; ++j_2) {
            #pragma unroll
            for (int i_11 = 0; i_11 < 2; ++i_11) {
              matmul_sum[2 * (i_11 & 1) + 48 * (i_11 >> 1) + (j_2 & 1) + 4 * (j_2 >> 1)] = (((long long)(j_2 + 96 * turn + 6 * (j_2 >> 1) + 2 * (lane_of_warp & 3)) > (long long)(8 * i_11 + 192 * row_tile + 16 * warp_1 + (lane_of_warp >> 2))) ? (-tf_inf_f32()) : matmul_sum[2 * (i_11 & 1) + 48 * (i_11 >> 1) + (j_2 & 1) + 4 * (j_2 >> 1)]);
            }
            #pragma unroll
            for (int i_13 = 0; i_13 < 2; ++i_13) {
              softmax_max_new_1[i_13] = tf_maximum(softmax_max_new_1[i_13], matmul_sum[2 * (i_13 & 1) + 48 * (i_13 >> 1) + (j_2 & 1) + 4 * (j_2 >> 1)]);
            }
          }
          float softmax_max_new_1_other;
          #pragma unroll
          for (int i_14 = 0; i_14 < 2; ++i_14) {
            softmax_max_new_1_other = tf_shuffle_xor<0xffffffffu>(softmax_max_new_1[i_14], 2, 32);
            softmax_max_new_1[i_14] = tf_maximum(softmax_max_new_1[i_14], softmax_max_new_1_other);
            softmax_max_new_1_other = tf_shuffle_xor<0xffffffffu>(softmax_max_new_1[i_14], 1, 32);
            softmax_max_new_1[i_14] = tf_maximum(softmax_max_new_1[i_14], softmax_max_new_1_other);
          }
          alignas(16) float softmax_max_factor_1[2];
          alignas(16) float above_1[2];
          bool any_above_1 = false;
          #pragma unroll
          for (int i_15 = 0; i_15 < 2; ++i_15) {
            above_1[i_15] = fmaf(softmax_max_new_1[i_15], 0.36067376f, softmax_max_negated[i_15]);
            any_above_1 = bool(any_above_1 | (above_1[i_15] > 8.0f));
          }
          if (any_above_1) {
            #pragma unroll
            for (int i_16 = 0; i_16 < 2; ++i_16) {
              float negated_1 = (-(softmax_max_new_1[i_16] * 0.36067376f));
              float factor_1 = ((above_1[i_16] > 8.0f) ? tf_narrow_exp2((negated_1 - softmax_max_negated[i_16])) : 1.0f);
              softmax_max_negated[i_16] = ((above_1[i_16] > 8.0f) ? negated_1 : softmax_max_negated[i_16]);
              softmax_sum_so_far[i_16] = (softmax_sum_so_far[i_16] * factor_1);
              softmax_max_factor_1[i_16] = factor_1;
            }
          }
          #pragma unroll
          for (int i_17 = 0; i_17 < 2; ++i_17) {
            softmax_max_used[i_17] = ((softmax_max_negated[i_17] == tf_inf_f32()) ? 0.0f : softmax_max_negated[i_17]);
          }
          #pragma unroll
          for (int i_18 = 0; i_18 < 2; ++i_18) {
            softmax_max_so_far[i_18] = softmax_max_new_1[i_18];
          }
          // %softmax_sum, %softmax: of this turn
          #pragma unroll
          for (int i_19 = 0; i_19 < 2; ++i_19) {
            #pragma unroll
            for (int j_3 = 0; j_3 < 24; ++j_3) {
              float power_1 = tf_narrow_exp2(fmaf(matmul_sum[2 * (i_19 & 1) + 48 * (i_19 >> 1) + (j_3 & 1) + 4 * (j_3 >> 1)], 0.36067376f, softmax_max_used[i_19]));
              softmax_sum_so_far[i_19] = (softmax_sum_so_far[i_19] + power_1);
              matmul_sum[2 * (i_19 & 1) + 48 * (i_19 >> 1) + (j_3 & 1) + 4 * (j_3 >> 1)] = power_1;
            }
          }
          tf_products_wait<0>(); tf_settle(matmul_1_so_far); tf_settle(matmul_sum);
          tf_release_slots<4, 0, 1, 1>(tf_values_empty, tf_values_slot, tf_values_open);
          if (any_above_1) {
            #pragma unroll
            for (int i_20 = 0; i_20 < 2; ++i_20) {
              #pragma unroll
              for (int g = 0; g < 8; ++g) {
                #pragma unroll
                for (int v_1 = 0; v_1 < 2; ++v_1) {
                  matmul_1_so_far[4 * g + v_1 + 2 * (i_20 & 1) + 32 * (i_20 >> 1)] = (matmul_1_so_far[4 * g + v_1 + 2 * (i_20 & 1) + 32 * (i_20 >> 1)] * softmax_max_factor_1[i_20]);
                }
              }
            }
          }
          // powers of this turn as a left operand
          #pragma unroll
          for (int n_6 = 0; n_6 < 24; ++n_6) {
            tf_round_pair(softmax_held + (2 * n_6), matmul_sum[2 * n_6], matmul_sum[2 * n_6 + 1]);
          }
        }
        for (int n_7 = cut; n_7 < edge_1; ++n_7) {
          const int turn_1 = last_ - 1 * n_7;
          {
            const int keys_slot_2 = tf_keys_slot;
            tf_bulk_wait(tf_keys_full + tf_keys_slot, tf_keys_phase);
            {
              const int values_slot_1 = tf_values_slot;
              tf_bulk_wait(tf_values_full + tf_values_slot, tf_values_phase);
              {
                const unsigned long long tf_left = tf_operand<128>(q_slots + 12288 * left_at + 4096 * (thread >> 7), 24576, 1024);
                const unsigned long long tf_right = tf_operand<128>(k_slots + 6144 * keys_slot_2, 12288, 1024);
                tf_products_begin();
                tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left, tf_right, 0 != 0);
                tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 2, tf_right + 2, 1);
                tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 4, tf_right + 4, 1);
                tf_wgmma_n96_f16_f16<0, 0>(matmul_sum, tf_left + 6, tf_right + 6, 1);
                tf_products_end();
              }
              {
                const unsigned long long tf_right = tf_operand<128>(v_slots + 6144 * values_slot_1, 12288, 1024);
                tf_products_begin();
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held).of, tf_right, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 8).of, tf_right + 128, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 16).of, tf_right + 256, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 24).of, tf_right + 384, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 32).of, tf_right + 512, 1);
                tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 40).of, tf_right + 640, 1);
                tf_products_end();
              }
              tf_products_wait<1>(); tf_settle(matmul_1_so_far); tf_settle(matmul_sum);
              tf_next_slot<4>(tf_values_slot, tf_values_phase);
              ++tf_values_open;
              tf_release_slots<4, 1, 1, 1>(tf_values_empty, tf_values_slot, tf_values_open);
            }
            tf_next_slot<4>(tf_keys_slot, tf_keys_phase);
            ++tf_keys_open;
            tf_release_slots<4, 0, 1, 1>(tf_keys_empty, tf_keys_slot, tf_keys_open);
          }
          // %softmax_max: with the elements of this turn
          alignas(16) float softmax_max_new_2[2];
          #pragma unroll
          for (int i_21 = 0; i_21 < 2; ++i_21) {
            softmax_max_new_2[i_21] = softmax_max_so_far[i_21];
          }
          #pragma unroll
          for (int j_4 = 0; j_4 < 24; ++j_4) {
            #pragma unroll
            for (int i_22 = 0; i_22 < 2; ++i_22) {
            }
            #pragma unroll
            for (int i_24 = 0; i_24 < 2; ++i_24) {
              softmax_max_new_2[i_24] = tf_maximum(softmax_max_new_2[i_24], matmul_sum[2 * (i_24 & 1) + 48 * (i_24 >> 1) + (j_4 & 1) + 4 * (j_4 >> 1)]);
            }
          }
          float softmax_max_new_2_other;
          #pragma unroll
          for (int i_25 = 0; i_25 < 2; ++i_25) {
            softmax_max_new_2_other = tf_shuffle_xor<0xffffffffu>(softmax_max_new_2[i_25], 2, 32);
            softmax_max_new_2[i_25] = tf_maximum(softmax_max_new_2[i_25], softmax_max_new_2_other);
            softmax_max_new_2_other = tf_shuffle_xor<0xffffffffu>(softmax_max_new_2[i_25], 1, 32);
            softmax_max_new_2[i_25] = tf_maximum(softmax_max_new_2[i_25], softmax_max_new_2_other);
          }
          alignas(16) float softmax_max_factor_2[2];
          alignas(16) float above_2[2];
          bool any_above_2 = false;
          #pragma unroll
          for (int i_26 = 0; i_26 < 2; ++i_26) {
            above_2[i_26] = fmaf(softmax_max_new_2[i_26], 0.36067376f, softmax_max_negated[i_26]);
            any_above_2 = bool(any_above_2 | (above_2[i_26] > 8.0f));
          }
          if (any_above_2) {
            #pragma unroll
            for (int i_27 = 0; i_27 < 2; ++i_27) {
              float negated_2 = (-(softmax_max_new_2[i_27] * 0.36067376f));
              float factor_2 = ((above_2[i_27] > 8.0f) ? tf_narrow_exp2((negated_2 - softmax_max_negated[i_27])) : 1.0f);
              softmax_max_negated[i_27] = ((above_2[i_27] > 8.0f) ? negated_2 : softmax_max_negated[i_27]);
              softmax_sum_so_far[i_27] = (softmax_sum_so_far[i_27] * factor_2);
              softmax_max_factor_2[i_27] = factor_2;
            }
          }
          #pragma unroll
          for (int i_28 = 0; i_28 < 2; ++i_28) {
            softmax_max_used[i_28] = ((softmax_max_negated[i_28] == tf_inf_f32()) ? 0.0f : softmax_max_negated[i_28]);
          }
          #pragma unroll
          for (int i_29 = 0; i_29 < 2; ++i_29) {
            softmax_max_so_far[i_29] = softmax_max_new_2[i_29];
          }
          // %softmax_sum, %softmax: of this turn
          #pragma unroll
          for (int i_30 = 0; i_30 < 2; ++i_30) {
            #pragma unroll
            for (int j_5 = 0; j_5 < 24; ++j_5) {
              float power_2 = tf_narrow_exp2(fmaf(matmul_sum[2 * (i_30 & 1) + 48 * (i_30 >> 1) + (j_5 & 1) + 4 * (j_5 >> 1)], 0.36067376f, softmax_max_used[i_30]));
              softmax_sum_so_far[i_30] = (softmax_sum_so_far[i_30] + power_2);
              matmul_sum[2 * (i_30 & 1) + 48 * (i_30 >> 1) + (j_5 & 1) + 4 * (j_5 >> 1)] = power_2;
            }
          }
          tf_products_wait<0>(); tf_settle(matmul_1_so_far); tf_settle(matmul_sum);
          tf_release_slots<4, 0, 1, 1>(tf_values_empty, tf_values_slot, tf_values_open);
          if (any_above_2) {
            #pragma unroll
            for (int i_31 = 0; i_31 < 2; ++i_31) {
              #pragma unroll
              for (int g_1 = 0; g_1 < 8; ++g_1) {
                #pragma unroll
                for (int v_2 = 0; v_2 < 2; ++v_2) {
                  matmul_1_so_far[4 * g_1 + v_2 + 2 * (i_31 & 1) + 32 * (i_31 >> 1)] = (matmul_1_so_far[4 * g_1 + v_2 + 2 * (i_31 & 1) + 32 * (i_31 >> 1)] * softmax_max_factor_2[i_31]);
                }
              }
            }
          }
          // powers of this turn as a left operand
          #pragma unroll
          for (int n_8 = 0; n_8 < 24; ++n_8) {
            tf_round_pair(softmax_held + (2 * n_8), matmul_sum[2 * n_8], matmul_sum[2 * n_8 + 1]);
          }
        }
        tf_release_slots<2, 0, 1, 1>(tf_left_empty, tf_left_slot, tf_left_open);
        // %matmul_1: the products of the first turn
        {
          const int values_slot_2 = tf_values_slot;
          tf_bulk_wait(tf_values_full + tf_values_slot, tf_values_phase);
          {
            const unsigned long long tf_right = tf_operand<128>(v_slots + 6144 * values_slot_2, 12288, 1024);
            tf_products_begin();
            tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held).of, tf_right, 1);
            tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 8).of, tf_right + 128, 1);
            tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 16).of, tf_right + 256, 1);
            tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 24).of, tf_right + 384, 1);
            tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 32).of, tf_right + 512, 1);
            tf_wgmma_n64_f16_f16_held<0, 1>(matmul_1_so_far, tf_left_words(softmax_held + 40).of, tf_right + 640, 1);
            tf_products_end();
          }
          tf_products_wait<0>(); tf_settle(matmul_1_so_far); tf_settle(matmul_sum);
          tf_next_slot<4>(tf_values_slot, tf_values_phase);
          ++tf_values_open;
          tf_release_slots<4, 0, 2, 1>(tf_values_empty, tf_values_slot, tf_values_open);
        }
        tf_tensor_store_wait<0, 128>();
        tf_team_barrier<128>();
        // the rows' sums over their lanes, and what is known only now
        float softmax_sum_so_far_other;
        #pragma unroll
        for (int i_32 = 0; i_32 < 2; ++i_32) {
          softmax_sum_so_far_other = tf_shuffle_xor<0xffffffffu>(softmax_sum_so_far[i_32], 2, 32);
          softmax_sum_so_far[i_32] = (softmax_sum_so_far[i_32] + softmax_sum_so_far_other);
          softmax_sum_so_far_other = tf_shuffle_xor<0xffffffffu>(softmax_sum_so_far[i_32], 1, 32);
          softmax_sum_so_far[i_32] = (softmax_sum_so_far[i_32] + softmax_sum_so_far_other);
        }
        #pragma unroll
        for (int i_33 = 0; i_33 < 2; ++i_33) {
          if (8 * i_33 + 192 * row_tile + 16 * warp_1 + (lane_of_warp >> 2) < 4096) {
            float softmax_sum = (softmax_sum_so_far[i_33] * tf_narrow_exp2((-fmaf(softmax_max_so_far[i_33], 0.36067376f, softmax_max_negated[i_33]))));
            float reciprocal = tf_narrow_reciprocal(softmax_sum);
            float whole = tf_narrow_exp2((-fmaf(softmax_max_so_far[i_33], 0.36067376f, softmax_max_negated[i_33])));
            #pragma unroll
            for (int g_2 = 0; g_2 < 8; ++g_2) {
              #pragma unroll
              for (int v_3 = 0; v_3 < 2; ++v_3) {
                matmul_1_so_far[4 * g_2 + v_3 + 2 * (i_33 & 1) + 32 * (i_33 >> 1)] = ((matmul_1_so_far[4 * g_2 + v_3 + 2 * (i_33 & 1) + 32 * (i_33 >> 1)] * reciprocal) * whole);
              }
            }
            #pragma unroll
            for (int g_3 = 0; g_3 < 8; ++g_3) {
              alignas(16) tf_f16 matmul_1_out[2];
              tf_round_pair(matmul_1_out + 0, matmul_1_so_far[4 * g_3 + 2 * (i_33 & 1) + 32 * (i_33 >> 1)], matmul_1_so_far[4 * g_3 + 2 * (i_33 & 1) + 32 * (i_33 >> 1) + 1]);
              tf_swizzled_store<128, 2>(matmul_1_stage, 8 * g_3 + 512 * i_33 + 2 * lane_of_warp + 1024 * warp_1 + 56 * (lane_of_warp >> 2), matmul_1_out);
            }
          }
        }
        tf_proxy_fence();
        tf_team_barrier<128>();
        tf_tensor_store<128>(matmul_1_map, matmul_1_stage + 4096 * (thread >> 7), {lead, 192 * row_tile + 64 * (thread >> 7), 0});
      }
    }
    tf_tensor_store_wait<0, 128>();
  }
}
