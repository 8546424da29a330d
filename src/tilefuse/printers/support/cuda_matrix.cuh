// Products of 16-bit operands on the matrix unit: fragments from shared memory, sums in f32.
// Source: PTX ISA, ldmatrix and mma.sync.aligned.m16n8k16.

//@ tf_ldmatrix
// Four 8x8 tiles of 16-bit elements: lane n gives the address of row n % 8 of tile n / 8. TURNED: each tile transposed.
template <bool TURNED> TF_INLINE void tf_ldmatrix(unsigned int (&fragment)[4], const void* row) {
  const unsigned int address = (unsigned int)__cvta_generic_to_shared(row);
  if (TURNED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3]) : "r"(address) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3]) : "r"(address) : "memory");
}

//@ tf_ldmatrix_pair
template <bool TURNED> TF_INLINE void tf_ldmatrix_pair(unsigned int& first, unsigned int& second, const void* row) {
  const unsigned int address = (unsigned int)__cvta_generic_to_shared(row);
  if (TURNED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "r"(address) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "r"(address) : "memory");
}

//@ tf_mma
TF_INLINE void tf_mma(float* sum, const unsigned int (&a)[4], const unsigned int* b, tf_f16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TF_INLINE void tf_mma(float* sum, const unsigned int (&a)[4], const unsigned int* b, tf_bf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//@ tf_right_fragments
// Fragments of right[16, 8 * N] of one step: k 0-7 and 8-15 of one instruction's columns, then the next's.
template <int N, bool TURNED, class T> TF_INLINE void tf_right_fragments(unsigned int (&b)[N][2], const T* right, int stride) {
  const int lane = threadIdx.x & 31, low = lane & 7, second = (lane >> 3) & 1, third = lane >> 4;
#pragma unroll
  for (int n = 0; n + 1 < N; n += 2) {
    unsigned int both[4];
    if (TURNED)
      tf_ldmatrix<false>(both, right + (8 * n + low + 8 * third) * stride + 8 * second);
    else
      tf_ldmatrix<true>(both, right + (low + 8 * second) * stride + 8 * n + 8 * third);
    b[n][0] = both[0], b[n][1] = both[1], b[n + 1][0] = both[2], b[n + 1][1] = both[3];
  }
  if (N & 1) {
    if (TURNED)
      tf_ldmatrix_pair<false>(b[N - 1][0], b[N - 1][1], right + (8 * (N - 1) + low) * stride + 8 * second);
    else
      tf_ldmatrix_pair<true>(b[N - 1][0], b[N - 1][1], right + (low + 8 * second) * stride + 8 * (N - 1));
  }
}

//@ tf_held_product
// One warp: sum[M * N tiles] += left * right, left[16 * M, INNER] in its lanes' registers as sums lie there, right in shared memory.
template <int M, int N, bool RIGHT_TURNED, int INNER, class T>
TF_INLINE void tf_held_product(float* sum, const T* left, const T* right, int right_stride) {
#pragma unroll
  for (int k = 0; k < INNER; k += 16) {
    unsigned int b[N][2];
    tf_right_fragments<N, RIGHT_TURNED>(b, RIGHT_TURNED ? right + k : right + k * right_stride, right_stride);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      unsigned int a[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) a[n] = *reinterpret_cast<const unsigned int*>(left + m * (INNER / 2) + k / 2 + 2 * n);
#pragma unroll
      for (int n = 0; n < N; ++n) tf_mma(sum + (m * N + n) * 4, a, b[n], T());
    }
  }
}

//@ tf_warp_product
// One warp: sum[16 of 64 rows, 8 * N] += left * right, TILES times. left in the lanes' registers as sums lie there; right in shared memory,
// turned, in panels of 128 bytes that lie PANEL bytes apart, each of whose 8 lines are swizzled. keep false: sum = the product.
TF_INLINE void tf_panel_fragments(unsigned int (&b)[4], unsigned int address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(address) : "memory");
}
template <int TILES, int N, int INNER, int PANEL, class T>
TF_INLINE void tf_warp_product(float* sum, const T* left, const T* right, bool keep) {
  const unsigned int lane = threadIdx.x & 31, line = lane & 7, chunk = (lane >> 3 & 1) ^ line;
  // A lane's line of one of four tiles: both halves of 16 inner elements of 8 columns, then of the next 8 (a single 8: of 16 further elements).
  const unsigned int second = N == 1 ? (lane >> 4) * 32 : (lane >> 4) * 1024;
  const unsigned int own = ((unsigned int)__cvta_generic_to_shared(right) + line * 128 + chunk * 16) ^ (N == 1 ? second : 0u);
  const unsigned int first = own + (N == 1 ? 0u : second);
#pragma unroll
  for (int n = 0; n < 4 * TILES * N; ++n) sum[n] = keep ? sum[n] : 0.0f;
#pragma unroll
  for (int k = 0; k < INNER; k += N == 1 ? 32 : 16) {
    const unsigned int place = (first ^ (unsigned int)(k % 64 * 2)) + k / 64 * PANEL;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      // Of an odd number of columns' eights the last one's neighbour is one that is read twice.
      unsigned int b[4];
      tf_panel_fragments(b, N > 1 && n + 1 == N ? place + n * 1024 - second : place + n * 1024);
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        const tf_left_words a(left + m * (INNER / 2) + k / 2);
        tf_mma(sum + (m * N + n) * 4, a.of, b, T());
        if (N == 1) {
          const tf_left_words next(left + m * (INNER / 2) + k / 2 + 8);
          tf_mma(sum + m * 4, next.of, b + 2, T());
        } else if (n + 1 < N) {
          tf_mma(sum + (m * N + n + 1) * 4, a.of, b + 2, T());
        }
      }
    }
  }
}

//@ tf_warp_pieces
// The same where lane p of four holds inner elements 32 p to 32 p + 31 of each two panels of 64, for p < 2 the first half in the first panel's
// place, for the others the second half: it loads the same ones of the right operand. Eight lanes that load together meet in no bank, for
// the right operand and for bytes of which a line has both panels: lines 2 n and 2 n + 1 swizzle chunks of one parity to places of both.
template <int TILES, int N, int INNER, int PANEL, class T>
TF_INLINE void tf_warp_pieces(float* sum, const T* left, const T* right, bool keep) {
  const unsigned int lane = threadIdx.x & 31, line = lane >> 2, second = lane >> 1 & 1, chunk = (4 * (lane & 1) + 2 * second) ^ line;
  const unsigned char* const own = (const unsigned char*)right + line * 128 + second * PANEL;
#pragma unroll
  for (int n = 0; n < 4 * TILES * N; ++n) sum[n] = keep ? sum[n] : 0.0f;
#pragma unroll
  for (int k = 0; k < INNER; k += 64) {
    unsigned int b[N][8];
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        memcpy(b[n] + 4 * half, __builtin_assume_aligned(own + n * 1024 + k / 128 * 2 * PANEL + (chunk ^ k / 64 % 2 * 2 ^ half) * 16, 16), 16);
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        const tf_left_words a(left + m * (INNER / 2) + k / 2 + 8 * step);
#pragma unroll
        for (int n = 0; n < N; ++n) tf_mma(sum + (m * N + n) * 4, a.of, b[n] + 2 * step, T());
      }
  }
}

//@ tf_matrix_product
// One warp: sum[M * N tiles] += left[16 * M, INNER] * right[INNER, 8 * N], both in shared memory with rows `stride` elements apart.
template <int M, int N, bool LEFT_TURNED, bool RIGHT_TURNED, int INNER, class T>
TF_INLINE void tf_matrix_product(float* sum, const T* left, int left_stride, const T* right, int right_stride) {
  const int lane = threadIdx.x & 31;
  // Tiles of the left fragment: rows 0-7 and 8-15 of k 0-7, then both of k 8-15.
  const int low = lane & 7, second = (lane >> 3) & 1, third = lane >> 4;
#pragma unroll
  for (int k = 0; k < INNER; k += 16) {
    unsigned int a[M][4], b[N][2];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      if (LEFT_TURNED)
        tf_ldmatrix<true>(a[m], left + (k + low + 8 * third) * left_stride + 16 * m + 8 * second);
      else
        tf_ldmatrix<false>(a[m], left + (16 * m + low + 8 * second) * left_stride + k + 8 * third);
    }
    tf_right_fragments<N, RIGHT_TURNED>(b, RIGHT_TURNED ? right + k : right + k * right_stride, right_stride);
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < N; ++n) tf_mma(sum + (m * N + n) * 4, a[m], b[n], T());
  }
}
