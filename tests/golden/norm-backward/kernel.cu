// k_dx_dw: 132 blocks of 512 threads, 98560 bytes of shared memory, for sm_90a
// nodes: %a, %b, %dx, %dw, %db
// schedule: a [GRID_132-CTA_8,CTA_64]S; b [GRID_132-CTA_8,CTA_64]S; dx [GRID_132-CTA_8,CTA_64]; dw [GRID_132,CTA_64,CTA_8]; db [GRID_132,CTA_64,CTA_8]; vector=8; chunks=2; on_chip=true; lanes=2; stages=2; span=125; resident=1; cta_num=132; cta_size=512;
// reads 67108864 bytes, writes 68190208 bytes
extern "C" __global__ void __launch_bounds__(512, 1)
k_dx_dw(
    const tf_f16* __restrict__ x,
    const tf_f16* __restrict__ g,
    float* __restrict__ dx,
    float* __restrict__ dw,
    float* __restrict__ db) {
  const int thread = threadIdx.x;
  const int block = blockIdx.x;
  extern __shared__ __align__(128) unsigned char tf_shared[];
  tf_f16* const x_queue = reinterpret_cast<tf_f16*>(tf_shared);
  tf_f16* const g_queue = reinterpret_cast<tf_f16*>(tf_shared + 32768);
  float* const a_b_shared = reinterpret_cast<float*>(tf_shared + 65536);
  float* const carried_rows = reinterpret_cast<float*>(tf_shared + 65792);
  __shared__ __align__(8) unsigned long long tf_arrivals[16];
  tf_bulk_init(tf_arrivals, 16);
  tf_wait_for_earlier_kernel();
  const int place = (thread & 63);
  const int row_of_block = (thread >> 6);
  // %x, %g: the first 2 rows start on their way to shared memory
  #pragma unroll
  for (int ahead = 0; ahead < 2; ++ahead) {
    const int first_row = (thread >> 6);
    const int team = (thread >> 6);
    const int next_row = 1056 * ahead + block + 132 * first_row;
    tf_bulk_copy_last<64>(x_queue + 8192 * ahead + 1024 * first_row, x + 1024 * next_row, 2048, tf_arrivals + (ahead + 2 * team), false);
    tf_bulk_copy_last<64>(g_queue + 8192 * ahead + 1024 * first_row, g + 1024 * next_row, 2048, tf_arrivals + (ahead + 2 * team), true);
  }
  alignas(16) float dw_carried[16];
  #pragma unroll
  for (int v = 0; v < 16; ++v) {
    dw_carried[v] = 0.0f;
  }
  alignas(16) float db_carried[16];
  #pragma unroll
  for (int v_1 = 0; v_1 < 16; ++v_1) {
    db_carried[v_1] = 0.0f;
  }
  const int row_unwrapped = block + 132 * row_of_block;
  const int row_ahead = (row_unwrapped & 16383);
  for (int turn = 0; turn < 16; ++turn) {
    const int row = block + 132 * row_of_block + 1056 * turn;
    const int row_wrapped = (row & 16383);
    const int parity = (turn & 1);
    const int row_unwrapped_1 = block + 132 * row_of_block + 1056 * turn + 1056;
    const int row_ahead_1 = (row_unwrapped_1 & 16383);
    const int stage = (turn & 1);
    const int team_1 = (thread >> 6);
    tf_bulk_wait(tf_arrivals + (stage + 2 * team_1), ((turn >> 1) & 1));
    // %x, %g: shared memory -> registers
    alignas(16) tf_f16 x_v[16];
    alignas(16) tf_f16 g_v[16];
    #pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      tf_vector_load<8>(x_v + 8 * chunk, x_queue + 512 * chunk + 8 * place + 1024 * row_of_block + 8192 * stage);
      tf_vector_load<8>(g_v + 8 * chunk, g_queue + 512 * chunk + 8 * place + 1024 * row_of_block + 8192 * stage);
    }
    tf_team_barrier_after<64>(tf_all_bits(x_v) | tf_all_bits(g_v));
    if (turn < 14) {
      const int first_row_1 = (thread >> 6);
      const int team_2 = (thread >> 6);
      const int next_row_1 = ((block + 132 * first_row_1 + 1056 * turn + 2112) & 16383);
      tf_bulk_copy_last<64>(x_queue + 1024 * first_row_1 + 8192 * (turn & 1), x + 1024 * next_row_1, 2048, tf_arrivals + (2 * team_2 + (turn & 1)), false);
      tf_bulk_copy_last<64>(g_queue + 1024 * first_row_1 + 8192 * (turn & 1), g + 1024 * next_row_1, 2048, tf_arrivals + (2 * team_2 + (turn & 1)), true);
    }
    // %a (reduce.sum), %b (reduce.sum): threads -> warp -> block
    alignas(16) float a[2];
    #pragma unroll
    for (int v_2 = 0; v_2 < 2; ++v_2) {
      a[v_2] = 0.0f;
    }
    alignas(16) float b[2];
    #pragma unroll
    for (int v_3 = 0; v_3 < 2; ++v_3) {
      b[v_3] = 0.0f;
    }
    #pragma unroll
    for (int chunk_1 = 0; chunk_1 < 2; ++chunk_1) {
      const int vector = 64 * chunk_1 + place;
      #pragma unroll
      for (int v_4 = 0; v_4 < 8; ++v_4) {
        float a_x = (tf_float(x_v[8 * chunk_1 + v_4]) * tf_float(g_v[8 * chunk_1 + v_4]));
        a[(v_4 & 1)] = (a[(v_4 & 1)] + a_x);
        float b_x = tf_float(g_v[8 * chunk_1 + v_4]);
        b[(v_4 & 1)] = (b[(v_4 & 1)] + b_x);
      }
    }
    a[0] = (a[0] + a[1]);
    b[0] = (b[0] + b[1]);
    const int lane_of_warp = (place & 31);
    const int upper = (lane_of_warp >> 4);
    float a_kept = (upper < 1 ? a[0] : b[0]);
    float a_given = (upper < 1 ? b[0] : a[0]);
    float a_kept_other;
    a_kept_other = tf_shuffle_xor<0xffffffffu>(a_given, 16, 32);
    a_kept = (a_kept + a_kept_other);
    float a_kept_other_1;
    a_kept_other_1 = tf_shuffle_xor<0xffffffffu>(a_kept, 8, 32);
    a_kept = (a_kept + a_kept_other_1);
    float a_kept_other_2;
    a_kept_other_2 = tf_shuffle_xor<0xffffffffu>(a_kept, 4, 32);
    a_kept = (a_kept + a_kept_other_2);
    float a_kept_other_3;
    a_kept_other_3 = tf_shuffle_xor<0xffffffffu>(a_kept, 2, 32);
    a_kept = (a_kept + a_kept_other_3);
    float a_kept_other_4;
    a_kept_other_4 = tf_shuffle_xor<0xffffffffu>(a_kept, 1, 32);
    a_kept = (a_kept + a_kept_other_4);
    const int which = (lane_of_warp >> 4);
    const int peer = (lane_of_warp & 15);
    const int warp_1 = (place >> 5);
    if (peer < 1) {
      a_b_shared[32 * parity + 4 * row_of_block + warp_1 + 2 * which] = a_kept;
    }
    tf_team_barrier<64>();
    a[0] = a_b_shared[32 * parity + 4 * row_of_block];
    float a_other = a_b_shared[32 * parity + 4 * row_of_block + 1];
    a[0] = (a[0] + a_other);
    b[0] = a_b_shared[32 * parity + 4 * row_of_block + 2];
    float b_other = a_b_shared[32 * parity + 4 * row_of_block + 3];
    b[0] = (b[0] + b_other);
    // %dx: registers -> global memory; %dw: carried down the columns; %db: carried down the columns
    #pragma unroll
    for (int chunk_2 = 0; chunk_2 < 2; ++chunk_2) {
      const int vector_1 = 64 * chunk_2 + place;
      if (row < 16384) {
        alignas(16) float dx_out[8];
        #pragma unroll
        for (int v_5 = 0; v_5 < 8; ++v_5) {
          float dw_x = (tf_float(x_v[8 * chunk_2 + v_5]) * tf_float(g_v[8 * chunk_2 + v_5]));
          dw_carried[8 * chunk_2 + v_5] = (dw_carried[8 * chunk_2 + v_5] + dw_x);
          float db_x = tf_float(g_v[8 * chunk_2 + v_5]);
          db_carried[8 * chunk_2 + v_5] = (db_carried[8 * chunk_2 + v_5] + db_x);
          float dx_1 = ((tf_float(g_v[8 * chunk_2 + v_5]) + (tf_float(x_v[8 * chunk_2 + v_5]) * a[0])) - b[0]);
          dx_out[v_5] = dx_1;
        }
        tf_vector_store_stream<8>(dx + 1024 * row_wrapped + 8 * vector_1, dx_out);
      }
    }
  }
  tf_let_next_kernel_start();
  // %dw: registers -> shared memory -> global memory
  #pragma unroll
  for (int chunk_3 = 0; chunk_3 < 2; ++chunk_3) {
    const int vector_2 = 64 * chunk_3 + place;
    tf_vector_store<8>(carried_rows + 1024 * row_of_block + 8 * vector_2, dw_carried + 8 * chunk_3);
  }
  __syncthreads();
  for (int round_ = 0; round_ < 2; ++round_) {
    const int element = 512 * round_ + thread;
    float dw_total = carried_rows[element];
    for (int other = 1; other < 8; ++other) {
      dw_total = (dw_total + carried_rows[element + 1024 * other]);
    }
    dw[1024 * block + element] = dw_total;
  }
  __syncthreads();
  // %db: registers -> shared memory -> global memory
  #pragma unroll
  for (int chunk_4 = 0; chunk_4 < 2; ++chunk_4) {
    const int vector_3 = 64 * chunk_4 + place;
    tf_vector_store<8>(carried_rows + 1024 * row_of_block + 8 * vector_3, db_carried + 8 * chunk_4);
  }
  __syncthreads();
  for (int round_1 = 0; round_1 < 2; ++round_1) {
    const int element_1 = 512 * round_1 + thread;
    float db_total = carried_rows[element_1];
    for (int other_1 = 1; other_1 < 8; ++other_1) {
      db_total = (db_total + carried_rows[element_1 + 1024 * other_1]);
    }
    db[1024 * block + element_1] = db_total;
  }
}
